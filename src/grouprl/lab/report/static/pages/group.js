// One group: its rewards under the reader's hands, and what four algorithms make of them, or one more.
import { h, put } from "../parts/dom.js";
import { asking, note } from "../parts/address.js";
import { file, queryOf } from "../parts/api.js";
import { advantageBars, extent, signedBars } from "../parts/explain/bars.js";
import { linePlot, nearest } from "../parts/explain/plot.js";
import { algorithmChoice, readRewards, rewardEditor, writeRewards } from "../parts/explain/rewards.js";
import { column, equals, plain, withSign } from "../parts/numbers.js";
import { counted, percent } from "../parts/text.js";

const ALGORITHMS = [["grpo", "GRPO"], ["dr_grpo", "Dr.GRPO"], ["rloo", "RLOO"], ["reinforce", "REINFORCE"]];
const DRAWN = 3; // of these, in the plot of weights
export async function render(page, parameters, query) {
  page.classList.add("explains");
  const [all, words] = [Object.entries(await file("presets.json")), await file("group.json")];
  const [given, wrong] = start(query, all[0][1]);
  const more = query.get("algorithm") ?? "";
  const own = !more || ALGORITHMS.some(([name]) => name === more) ? [] : [[more, more]];
  const algorithms = [...ALGORITHMS, ...own];
  const compared = comparedAdvantages(algorithms);
  const said = h("div", { class: "card verdicts", "aria-live": "polite" });
  const drawn = [...ALGORITHMS.slice(0, DRAWN), ...(more === "reinforce" ? [[more, more]] : own)];
  const weight = weightPlot(drawn.map(([name, title], place) => [name, title, place + 1]), words);
  const asked = asking("advantages", (answer) => {
    compared.show(answer);
    put(said, verdicts(answer).map((sentence) => h("p", {}, sentence)));
  }, (sentence) => put(said, h("p", { class: "error" }, sentence)));
  const parametersOf = (rewards) => ({ rewards: writeRewards(rewards), algorithms: algorithms.map(([name]) => name).join(",") });
  const changed = (rewards) => {
    note({ rewards: writeRewards(rewards), algorithm: more });
    asked.soon(parametersOf(rewards));
    weight.show(rewards.length);
  };
  const editor = rewardEditor(given, changed);
  const presets = all.map(([name, rewards]) => h("button", { type: "button", onclick: () => editor.set(rewards) }, name));
  const { element, select } = algorithmChoice("Compare with", more, "no other");
  select.addEventListener("change", () => {
    location.hash = `#/group${queryOf({ rewards: writeRewards(editor.rewards()), algorithm: select.value })}`;
  });
  put(page,
    h("h1", {}, "One group"),
    h("p", { class: "lead" }, words.lead),
    wrong ? h("p", { class: "error" }, wrong) : null,
    h("div", { class: "row presets", role: "group", "aria-label": "Examples" }, presets),
    h("section", { class: "card", "aria-label": "Rewards" }, h("h2", { class: "first" }, "Rewards"), editor.element),
    h("h2", {}, "Advantages"), h("div", { class: "row presets" }, element), compared.element, said,
    weight.element);
  asked.now(parametersOf(given));
  weight.show(given.length);
  return () => [asked, weight].forEach((one) => one.end());
}

function start(query, usual) {
  const text = query.get("rewards");
  if (!text) return [usual, null];
  try {
    return [readRewards(text), null];
  } catch (error) {
    return [usual, `The rewards in this address cannot be read: ${error.message}.`];
  }
}

// One group under several algorithms: their advantages as bars on one scale, each with what it compares a reward with.

/** The algorithms side by side; each is [name, title]. Gives {element, show(answer)} for the lab's `advantages`. */
function comparedAdvantages(algorithms) {
  const panels = algorithms.map(([name, title]) => {
    const [bars, rule] = [signedBars(`Advantages under ${title}`, []), h("p", { class: "note" })];
    const element = h("section", { class: "card", "aria-label": title }, h("h3", {}, title), rule, bars.element);
    return { name, bars, rule, element };
  });
  return {
    element: h("div", { class: "four" }, panels.map(({ element }) => element)),
    show({ rewards, algorithms: found }) {
      const all = panels.flatMap(({ name }) => found[name].advantages ?? []);
      const range = extent(all), texts = column(all, { sign: true }); // as many digits in each panel
      for (const { name, bars, rule } of panels) {
        put(rule, found[name].advantages ? found[name].sentence : found[name].without_signal);
        const rows = advantageBars(found[name].advantages ?? [], rewards);
        const own = texts.splice(0, rows.length);
        bars.update(rows.map((row, place) => (row.value === null ? row : { ...row, text: own[place] })), range);
      }
    },
  };
}

// How much a group weighs in the gradient, by how often its problem is solved.

const BEGINS = 0.5; // of the handle
const QUOTED = [0.05, 0.2, 0.5]; // pass rates of a hard problem and an even one
const SHOWN = 4; // digits of a weight or an advantage

/** The plot of `lines` of [name, title, look] with its sentences; `show(size)` asks for groups of that size. */
function weightPlot(lines, words) {
  const title = h("h2", { id: "weight" }, "Weight of a group, by pass rate");
  const read = h("p", { class: "read" });
  let answer = null;
  const shown = (index) => put(read, readout(answer, lines, index));
  const plot = linePlot({
    label: "Weight of a group against the pass rate of its problem",
    x: "pass rate of the problem",
    y: "weight: sum of |A| over the group",
    handle: { name: "Pass rate", said: (index) => spoken(answer, lines, index) },
    onmove: shown,
  });
  const asked = asking("pass_rate", (found) => {
    const first = answer === null;
    answer = found;
    put(title, `Weight of a group of ${found.group_size}, by pass rate`);
    const series = lines.map(([name, title, look]) => ({ name: title, look, values: found.algorithms[name].weight }));
    plot.show({ grid: found.pass_rate, series });
    if (first) plot.move(nearest(found.pass_rate, BEGINS));
    shown(plot.index());
  });
  let size = null;
  return {
    element: h("section", { "aria-labelledby": "weight" }, title,
      h("p", { class: "lead" }, words.weight),
      h("div", { class: "card" }, asked.failed, plot.element, read)),
    show(next) {
      if (next === size) return;
      size = next;
      const parameters = { group_size: size, algorithms: lines.map(([name]) => name).join(",") };
      if (answer) asked.soon(parameters);
      else asked.now(parameters);
    },
    end: asked.end,
  };
}

function spoken({ pass_rate: rates, algorithms }, lines, index) {
  const each = lines.map(([name, title]) => `${title} ${plain(algorithms[name].weight[index], SHOWN)}`);
  return `pass rate ${percent(rates[index])}: ${each.join(", ")}`;
}

function readout({ pass_rate: rates, signal, algorithms, quotient }, lines, index) {
  const each = lines.flatMap(([name, title], place) =>
    [place ? ", " : "", `${title} `, h("b", {}, plain(algorithms[name].weight[index], SHOWN))]);
  return ["At a pass rate of ", h("b", {}, percent(rates[index])),
    `, ${percent(signal[index])} of the groups have a signal. Weight: `, each, ".",
    quotient[index] === null ? null : [" GRPO's weight is ", h("b", {}, plain(quotient[index], SHOWN)), " times Dr.GRPO's, which does not divide by the deviation; " +
      QUOTED.map((rate) => `${plain(quotient[nearest(rates, rate)], SHOWN)} times at ${percent(rate)}`).join(", "), "."]];
}

// What the numbers of a group say, in sentences: every number in them is one that the lab gave.

const MOST_NAMED = 4; // completions that are tied

/** Of the lab's `advantages`: sentences about groups without signal, outliers and invalid completions. */
function verdicts({ rewards, valid: count, algorithms }) {
  const valid = rewards.flatMap((reward, index) => (reward === null ? [] : [index]));
  const { grpo } = algorithms;
  const said = count < rewards.length ? [invalid(rewards, count)] : [];
  if (count > 1) said.push(spread(grpo, count === rewards.length ? `all ${count}` : `the ${count} valid`));
  return [...said, grpo.without_signal ? noSignal(rewards, valid, algorithms) : outlier(rewards, valid, algorithms)];
}

function spread({ mean, deviation, divided_by: divided }, over) {
  const about = (value) => (equals(value) === "= " ? "" : "about ");
  return `Over ${over} rewards the mean is ${about(mean)}${plain(mean)}, the standard deviation ${about(deviation)}${plain(deviation)}. It is the deviation ` +
    `of the population: the sum of the squared distances from the mean is divided by their number, ${divided}, not by one less.`;
}

function invalid(rewards, count) {
  const left = rewards.length - count;
  return `${left} of ${counted(rewards.length, "completion")} ${left === 1 ? "is" : "are"} invalid, for example because the verifier failed: ` +
    "the statistics skip invalid completions, which never count as a reward of 0.";
}

function noSignal(rewards, valid, { grpo, reinforce }) {
  const said = `${grpo.without_signal} Sampling its completions took time, but GRPO, Dr.GRPO and RLOO ` +
    "learn nothing from it.";
  const moved = valid.find((index) => reinforce.advantages[index] !== 0);
  if (valid.length === 0) return said;
  if (moved === undefined) return `${said} REINFORCE learns nothing either, because the rewards are ${plain(rewards[valid[0]])}.`;
  const still = withSign(reinforce.advantages[moved], SHOWN);
  return `${said} REINFORCE, whose baseline is a constant, still gives completion ${moved} an advantage of ${still}.`;
}

function outlier(rewards, valid, { grpo: { advantages: grpo }, dr_grpo: { advantages: bare } }) {
  const different = [...new Set(valid.map((index) => rewards[index]))];
  const kinds = different.map((reward) => valid.filter((index) => rewards[index] === reward));
  if (kinds.length === 2) return twoKinds(kinds.sort((one, other) => one.length - other.length), rewards, grpo, bare);
  const [most, least] = [strongest(valid, grpo, Math.max), strongest(valid, grpo, Math.min)];
  return `Under GRPO ${each(most, grpo)} ${most.length === 1 ? "weighs" : "weigh"} most, ${each(least, grpo)} least. ` +
    `Without the division by the deviation (Dr.GRPO): ${each(most, bare)} and ${each(least, bare)}.`;
}

/** All whose advantage is as far from 0 as that of the furthest, or the nearest, as far as it is written out. */
function strongest(valid, advantages, extreme) {
  const size = (index) => plain(Math.abs(advantages[index]), SHOWN);
  const limit = extreme(...valid.map((index) => Math.abs(advantages[index])));
  return valid.filter((index) => size(index) === plain(limit, SHOWN));
}

/** Completions with their advantages, those with the same one together. */
function each(indices, advantages) {
  const texts = column(indices.map((index) => advantages[index]), { digits: SHOWN, sign: true });
  return joined([...Map.groupBy(indices, (_, place) => texts[place])].map(([text, tied]) => `${named(tied)} (${text})`));
}

function named(indices) {
  const more = indices.length - MOST_NAMED;
  const names = more > 0 ? [...indices.slice(0, MOST_NAMED), counted(more, "other")] : indices;
  return `completion${indices.length === 1 ? "" : "s"} ${joined(names)}`;
}

const joined = (words) => new Intl.ListFormat("en-GB").format(words.map(String));

function twoKinds([few, many], rewards, grpo, bare) {
  const [one, other] = [few[0], many[0]];
  const [loud, quiet, plainly, against] = [grpo[one], grpo[other], bare[one], bare[other]].map((value) => withSign(value, SHOWN));
  const divided = `Without the division by the deviation (Dr.GRPO): ${plainly} and ${against}.`;
  const balance = "As in every group, the advantages add up to 0.";
  if (few.length === many.length) {
    const found = many.length === 1 ? `One against one: completion ${one} gets ${loud} under GRPO, completion ${other} ${quiet}. Each`
      : `Half and half: ${few.length} get ${loud}, ${many.length} get ${quiet} under GRPO. Each completion`;
    return `${found} has the same weight. ${many.length === 1 ? "" : `${balance} `}${divided}`;
  }
  if (few.length === 1) {
    return `One against ${many.length}: completion ${one} gets ${loud} under GRPO, each of the others ${quiet}. ` +
      `It weighs as much as the other ${many.length} together. ${balance} ${divided}`;
  }
  return `The ${few.length} completions with reward ${plain(rewards[one])} get ${loud} each under GRPO, ` +
    `the ${many.length} with reward ${plain(rewards[other])} get ${quiet} each: the rarer a reward is in its group, the larger the ` +
    `absolute advantage of its completions. ${balance} ${divided}`;
}

// From rewards to advantages: what a reward is compared with, worked out, and the bars that come of it.
import { h } from "../dom.js";
import { bracketed, column, equals, plain, withSign } from "../numbers.js";
import { figures } from "../table.js";
import { written } from "../text.js";
import { added, deviationWorked, meanWorked } from "../worked.js";
import { signedBars } from "./bars.js";
import { advantageEquations, comparison, deviationOf, meanOf, statisticsEquations, stepStatisticsEquations } from "./formulas.js";
import { filled, math, term } from "./stages.js";

const MOST_STEPS = 8; // of one of steps
const SETS = { steps: "all steps of the group", group: "the group", batch: "all groups of the batch" };

export function statisticsStage({ algorithm, stages: { statistics } }, { statistics: words }) {
  const bySteps = statistics.kind === "steps";
  return {
    key: "statistics",
    ...words,
    happens: summedUp(statistics),
    why: words.why[setOf(statistics)],
    watch: words.watch + (bySteps ? words.steps : ""),
    equation: bySteps ? stepStatisticsEquations(statistics) : statisticsEquations(algorithm, statistics),
    body: () => h("div", {}, bySteps ? stepStatistics(statistics) : statisticsBody(statistics)),
  };
}

/** Whose rewards make the mean: all "steps" of the group, the "group", or the "batch". */
function setOf(statistics) {
  return statistics.kind === "steps" ? "steps" : comparison(statistics)?.mean_of ?? "group";
}

function summedUp(statistics) {
  const [one, whose, bySteps] = [comparison(statistics), SETS[setOf(statistics)], statistics.kind === "steps"];
  if (!bySteps && !one?.mean_of && !one?.deviation_of) {
    return "In GRPO the rewards of a group come down to their mean and their deviation. Not in this run.";
  }
  if (!bySteps && !one.deviation_of) return `The rewards of ${whose} come down to one number: their mean.`;
  return `The rewards of ${whose} come down to two numbers: their mean, and how far they scatter around it.`;
}

function statisticsBody({ kind, compared, by_name: byName, ...found }) {
  if (kind === "components") return Object.entries(byName).map(([name, one]) => [h("h3", {}, written(name)), worked(one)]);
  return compared ? worked(compared) : h("p", {}, found.sentence);
}

function worked({ mean_of: of, without_signal: silent, sentence, fields, ...given }) {
  const set = of === "batch" ? given.batch : given;
  if (!of || set.mean === null) return h("p", {}, silent ?? sentence);
  return h("ul", { class: "worked" },
    h("li", {}, term("mu", meanOf(of)), " = ", meanWorked(set, of === "batch" ? null : given.rewards), of === "batch" ? " over the batch" : null),
    given.deviation_of ? scatter(given) : h("li", {}, fields.scale === "none" ? "This algorithm divides by no deviation." : sentence),
    silent ? h("li", {}, h("span", { class: "mark warn" }, "no signal"), " ", silent) : null);
}

function scatter({ squares, deviation_of: over, batch, ...own }) {
  const whole = over === "batch", shown = column(squares.filter((one) => one !== null)).join(", ");
  return [h("li", {}, `squared distances ${whole ? "of this group " : ""}from the mean: ${shown}`),
    h("li", {}, term("sigma", deviationOf(over)), " = ", deviationWorked(whole ? batch : own), whole ? " over the batch" : null)];
}

export function advantagesStage({ source, algorithm, stages: { statistics, advantages, rewards } }, { advantages: words }) {
  const { kind, compared } = statistics;
  return {
    key: "advantages",
    ...filled(words, { sentence: statistics.sentence, what: advantages.by_token ? "its token" : "every token of its completion" }),
    watch: words.watch[advantages.by_token ? "token" : "completion"],
    equation: advantageEquations(algorithm),
    body: () => h("div", {},
      kind === "rewards" ? example(compared) : kind === "components" ? mixed(statistics, rewards, advantages) : null,
      kind === "steps" ? stepExample(statistics, advantages) : null,
      signedBars("Advantages", bars(advantages.completions, rewards.completions)).element,
      source.rewards === undefined ? h("p", { class: "note" }, "The bars are the advantages that the run recorded.") : null),
  };
}

function bars(advantages, completions) {
  return advantages.map((value, index) =>
    ({ name: String(index), value: completions[index].reward === null ? null : value, said: "invalid" }));
}

/** The first completion that has one, in numbers. */
function example({ rewards, baselines, gaps, divisors, advantages, fields: { scale, eps }, deviation_of: over, without_signal: silent }) {
  if (silent) return h("p", {}, silent);
  const index = rewards.findIndex((reward) => reward !== null);
  const [less, gap, divisor, own] = [baselines, gaps, divisors, advantages].map((values) => values[index]);
  const above = `Completion ${index}: ${plain(rewards[index])} \u2212 ${bracketed(less)} `;
  if (scale === "none") return h("p", {}, above, equals(own), h("b", {}, withSign(own)), ".");
  return h("p", {}, above, `${equals(gap)}${plain(gap)}, and ${plain(gap)} / ${plain(divisor)} `, equals(own),
    h("b", {}, withSign(own)), over ? `. The divisor has \u03f5 = ${plain(eps)} in it.` : ".");
}

/** The same where each reward function is compared by itself: the weighted advantages of one completion, added up. */
function mixed({ by_name: byName }, { weights, completions }, { completions: advantages }) {
  const index = completions.findIndex(({ reward }) => reward !== null);
  if (index < 0) return null;
  const parts = Object.entries(byName).filter(([name, { advantages: own }]) => weights[name] !== null && own[index] !== null);
  const terms = parts.map(([name, { advantages: own }]) => `${plain(weights[name])} \u00d7 ${bracketed(own[index])}`);
  return h("p", {}, `Completion ${index}: ${terms.join(" + ")} ${equals(advantages[index])}`, h("b", {}, withSign(advantages[index])),
    `, from ${parts.map(([name]) => name).join(", ")}.`);
}

// Rewards for steps: all steps of the group side by side, and the tokens that are credited with them.

function stepStatistics({ steps, ...all }) {
  if (all.count === 0) return h("p", {}, "No completion of this group has a valid reward.");
  return [
    h("ul", { class: "worked" },
      h("li", {}, term("mu", "μ"), " = ", meanWorked(all), ` over the ${all.count} steps below`),
      all.count > 1 ? h("li", {}, term("sigma", "σ"), " = ", deviationWorked(all)) : null),
    stepTable(steps)];
}

function stepTable(rows) {
  const all = rows.flatMap((steps, completion) => steps.map((step, place) => ({ ...step, completion, place, last: place === steps.length - 1 })));
  const names = all.map(({ completion }) => String(completion));
  return figures("Steps of the group", ["no.", "step", "ends at token", math("reward r_{i,k}"), math("normalised r\u0303_{i,k}")],
    [names, all.map(({ place, last }) => (last ? "the completion" : String(place + 1))), all.map(({ end }) => String(end + 1)),
      column(all.map(({ reward }) => reward)), column(all.map(({ normalised }) => normalised), { sign: true })]);
}

/** The completion with the most steps: which tokens are credited with which of them. The sums are the recorded advantages. */
function stepExample({ steps }, { tokens }) {
  const most = Math.max(...steps.map((row) => row.length));
  const index = steps.findIndex((row) => row.length === most);
  if (!tokens || most === 0) return null;
  const row = [...steps[index]].sort((one, other) => one.end - other.end);
  const stretches = row.map(({ end }, place) => ({ from: place ? row[place - 1].end + 1 : 0, end, left: row.slice(place) }));
  return h("div", {}, h("p", {}, `Completion ${index}, token by token: each is credited with the steps that end at or after it.`),
    h("ul", { class: "worked" }, stretches.filter(({ from, end }) => from <= end).map(({ from, end, left }) =>
      h("li", {}, `${from === end ? "token" : "tokens"} ${from === end ? "" : `${from + 1} to `}${end + 1}: `, credited(left, tokens[index][end])))));
}

function credited(steps, advantage) {
  return [added(steps.map(({ normalised }) => bracketed(normalised)), MOST_STEPS), " ", equals(advantage), h("b", {}, withSign(advantage))];
}

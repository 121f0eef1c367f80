// From rewards to advantages: what a reward is compared with, worked out, and the bars that come of it.
import { h } from "../dom.js";
import { bracketed, column, equals, plain, withSign } from "../numbers.js";
import { written } from "../text.js";
import { signedBars } from "./bars.js";
import { advantageEquations, letterOf } from "./advantage.js";
import { DEVIATION, equation, fraction, MEAN, power, root, term, v } from "./equation.js";
import { stepExample, stepStatistics, stepStatisticsEquations } from "./stage_steps.js";

const MOST_TERMS = 16; // of a sum that is written out
const SETS = { steps: "all steps of the group", group: "the group", batch: "all groups of the batch" };
const WHYS = {
  steps: "The mean is what the policy may expect of a step on this prompt. A step is good if it does better than that.",
  group: "The mean is what the policy may expect on this prompt. A completion is good if it does better than that, however easy " +
    "or hard the prompt is.",
  batch: "The mean is what the policy may expect on the prompts of the batch. A completion is good if it does better than that, which " +
    "is easier on an easy prompt.",
};

export function statisticsStage({ algorithm, stages: { statistics } }) {
  const bySteps = statistics.kind === "steps";
  return {
    key: "statistics",
    title: "Mean and deviation",
    next: "mean and deviation",
    happens: summedUp(statistics),
    why: WHYS[setOf(statistics)],
    watch: `If all rewards are equal, none did better than the others: the advantages are then exactly 0.${bySteps
      ? " Each completion's own reward is one more step, which ends with it." : ""}`,
    equation: bySteps ? stepStatisticsEquations(statistics) : statisticsEquations(statistics, letterOf(algorithm)),
    body: () => h("div", {}, bySteps ? stepStatistics(statistics) : statisticsBody(statistics)),
  };
}

/** Whose rewards make the mean: all "steps" of the group, the "group", or the "batch". */
function setOf({ kind, compared, by_name: byName }) {
  return kind === "steps" ? kind : (compared ?? Object.values(byName ?? {})[0])?.mean_of ?? "group";
}

function summedUp(statistics) {
  const { kind, compared, by_name: byName } = statistics;
  const whose = SETS[setOf(statistics)];
  const one = compared ?? Object.values(byName ?? {})[0];
  if (kind !== "steps" && !one?.mean_of && !one?.deviation_of) {
    return "In GRPO the rewards of a group come down to their mean and their deviation. Not in this run.";
  }
  if (kind !== "steps" && !one.deviation_of) return `The rewards of ${whose} come down to one number: their mean.`;
  return `The rewards of ${whose} come down to two numbers: their mean, and how far they scatter around it.`;
}

/** Of what the algorithm uses: the mean, and the deviation where it divides by one. */
function statisticsEquations({ compared, by_name: byName }, letter) {
  const one = compared ?? Object.values(byName ?? {})[0] ?? null;
  if (!one) return [];
  const [mean, deviation] = [meanOf(one.mean_of), deviationOf(one.deviation_of)];
  const sample = one.fields.std === "sample";
  const sum = () => v("\u2211", "i");
  return [
    one.mean === null ? null : equation("the mean mu is the sum of the rewards over their number n",
      mean, " = ", fraction("1", h("i", {}, "n")), " ", sum(), " ", v(letter, "i")),
    one.deviation_of ? equation(
      `the deviation sigma is the root of the sum of the squared distances from the mean over n${sample ? " minus one" : ""}`,
      deviation, " = ", root(fraction("1", h("i", {}, sample ? "n \u2212 1" : "n")), " ", sum(),
        " ( ", v(letter, "i"), " \u2212 ", meanOf(one.deviation_of), " )", power("", "2"))) : null,
  ];
}

function meanOf(set) {
  return set === "batch" ? v("\u03bc", "B") : MEAN();
}

function deviationOf(set) {
  return set === "batch" ? v("\u03c3", "B") : DEVIATION();
}

function statisticsBody({ kind, compared, by_name: byName, ...found }) {
  if (kind === "components") return Object.entries(byName).map(([name, one]) => [h("h3", {}, written(name)), worked(one)]);
  return compared ? worked(compared) : h("p", {}, found.sentence);
}

function worked({ mean, mean_of: of, deviation_of: over, degenerate, why, worked: numbers }) {
  if (mean === null) return h("p", {}, why ?? "This algorithm compares with a constant: neither of them plays a part.");
  return h("ul", { class: "worked" },
    h("li", {}, term("mu", meanOf(of)), ...meanWorked(numbers, of), h("b", {}, plain(mean)), of === "batch" ? " over the batch" : null),
    numbers.deviation === null ? h("li", {}, "This algorithm divides by no deviation.") : deviationWorked(numbers, over),
    degenerate ? h("li", {}, h("span", { class: "mark warn" }, "no signal"), " ", why) : null);
}

function meanWorked({ n, sum, mean, rewards }, of) {
  const quotient = `${equals(sum)}${plain(sum)} / ${n} ${equals(mean)}`;
  const valid = rewards.filter((reward) => reward !== null).map(bracketed);
  return of === "batch" || valid.length > MOST_TERMS ? [` ${quotient}`] : [` = (${valid.join(" + ")}) / ${n} `, quotient];
}

function deviationWorked({ squares, sum_of_squares: total, divided_by: divided, deviation }, over) {
  const whole = over === "batch";
  const shown = column(squares.filter((one) => one !== null)).join(", ");
  return [h("li", {}, `squared distances ${whole ? "of this group " : ""}from the mean: ${shown}`),
    h("li", {}, term("sigma", deviationOf(over)), ` = \u221a(${plain(total)} / ${divided}) ${equals(deviation)}`, h("b", {}, plain(deviation)),
      whole ? " over the batch" : null)];
}

export function advantagesStage({ source, algorithm, stages: { statistics, advantages, rewards } }) {
  const { kind, compared } = statistics;
  return {
    key: "advantages",
    title: "Advantages",
    next: "advantages",
    happens: `Each reward becomes an advantage: how much better it was than what it is compared with. ${statistics.sentence}`,
    why: `A positive advantage makes ${advantages.by_token ? "its token" : "every token of its completion"} likelier, a negative one less likely.`,
    watch: advantages.by_token
      ? "Here the tokens of a completion have different advantages. The bars show their mean."
      : "The number is for the completion, not for its words: what was superfluous in a good one is praised too, what was right " +
        "in a bad one is blamed.",
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
function example({ worked: { rewards, baselines, deviations, divisor, advantages }, fields: { eps }, degenerate, why }) {
  const index = rewards.findIndex((reward) => reward !== null);
  if (index < 0 || degenerate) return h("p", {}, why);
  const [less, gap, own] = [baselines[index], deviations[index], advantages[index]];
  const above = `Completion ${index}: ${plain(rewards[index])} \u2212 ${bracketed(less)} `;
  if (divisor === null) return h("p", {}, above, equals(own), h("b", {}, withSign(own)), ".");
  return h("p", {}, above, `${equals(gap)}${plain(gap)}, and ${plain(gap)} / ${plain(divisor)} `, equals(own),
    h("b", {}, withSign(own)), `. The divisor has \u03f5 = ${plain(eps)} in it.`);
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

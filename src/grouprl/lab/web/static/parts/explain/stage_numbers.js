// From rewards to advantages: what a reward is compared with, worked out, and the bars that come of it.
import { h } from "../dom.js";
import { written } from "../text.js";
import { signedBars } from "./bars.js";
import { ADVANTAGE, DEVIATION, equation, fraction, MEAN, power, REWARD, root, term, v } from "./equation.js";
import { plain, withSign } from "./figures.js";

const MOST_TERMS = 16; // of a sum that is written out

export function statisticsStage({ stages: { statistics } }) {
  const unused = statistics.kind === "tokens" && !statistics.compared;
  return {
    key: "statistics",
    title: "Mean and deviation",
    next: "mean and deviation",
    happens: unused
      ? "In GRPO the rewards of a group come down to their mean and their deviation. Not in this run."
      : "The rewards of the group come down to two numbers: their mean, and how far they scatter around it.",
    why: "The mean is what the policy may expect on this prompt. A completion is good if it does better than that, however easy " +
      "or hard the prompt is.",
    watch: "If all rewards are equal, none did better than the others: the advantages are then exactly 0.",
    equation: statisticsEquations(statistics),
    body: () => h("div", {}, statisticsBody(statistics)),
  };
}

/** Of what the algorithm uses: the mean, and the deviation where it divides by one. */
function statisticsEquations({ kind, compared, by_name: byName }) {
  const one = compared ?? Object.values(byName ?? {})[0] ?? null;
  if (!one && kind !== "steps") return [];
  const [mean, deviation] = [meanOf(one?.mean_of), deviationOf(one?.deviation_of)];
  const sample = one?.fields.std === "sample";
  const sum = () => v("\u2211", "i");
  return [
    one && one.mean === null ? null : equation("the mean mu is the sum of the rewards over their number n",
      mean, " = ", fraction("1", h("i", {}, "n")), " ", sum(), " ", REWARD()),
    one && !one.deviation_of ? null : equation(
      `the deviation sigma is the root of the sum of the squared distances from the mean over n${sample ? " minus one" : ""}`,
      deviation, " = ", root(fraction("1", h("i", {}, sample ? "n \u2212 1" : "n")), " ", sum(),
        " ( ", REWARD(), " \u2212 ", meanOf(one?.deviation_of), " )", power("", "2"))),
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
  if (kind === "steps") {
    return h("p", {}, `Over the rewards of all ${found.n} steps of the group: mean ${plain(found.mean)}, standard deviation ${plain(found.deviation)}.`);
  }
  return compared ? worked(compared) : h("p", {}, found.sentence);
}

function worked({ mean, mean_of: of, deviation_of: over, degenerate, why, worked: numbers }) {
  if (mean === null) return h("p", {}, why ?? "This algorithm compares with a constant: neither of them plays a part.");
  return h("ul", { class: "worked" },
    h("li", {}, term("mu", meanOf(of)), " = ", ...meanWorked(numbers, of), h("b", {}, plain(mean)), of === "batch" ? " over the batch" : null),
    numbers.deviation === null ? h("li", {}, "This algorithm divides by no deviation.") : deviationWorked(numbers, over),
    degenerate ? h("li", {}, h("span", { class: "mark warn" }, "no signal"), " ", why) : null);
}

function meanWorked({ n, sum, rewards }, of) {
  const quotient = `${plain(sum)} / ${n} = `;
  const valid = rewards.filter((reward) => reward !== null).map((reward) => plain(reward));
  return of === "batch" || valid.length > MOST_TERMS ? [quotient] : [`(${valid.join(" + ")}) / ${n} = `, quotient];
}

function deviationWorked({ squares, sum_of_squares: total, divided_by: divided, deviation }, over) {
  const whole = over === "batch";
  const shown = squares.filter((one) => one !== null).map((one) => plain(one)).join(", ");
  return [h("li", {}, `squared distances ${whole ? "of this group " : ""}from the mean: ${shown}`),
    h("li", {}, term("sigma", deviationOf(over)), ` = \u221a(${plain(total)} / ${divided}) = `, h("b", {}, plain(deviation)),
      whole ? " over the batch" : null)];
}

export function advantagesStage({ source, stages: { statistics, advantages, rewards } }) {
  const { compared } = statistics;
  return {
    key: "advantages",
    title: "Advantages",
    next: "advantages",
    happens: `Each reward becomes an advantage: how much better it was than what it is compared with. ${statistics.sentence}`,
    why: "A positive advantage makes every token of its completion likelier, a negative one less likely.",
    watch: advantages.by_token
      ? "Here the tokens of a completion have different advantages. The bars show their mean."
      : "The number is for the completion, not for its words: what was superfluous in a good one is praised too, what was right " +
        "in a bad one is blamed.",
    equation: compared ? advantageEquation(compared.fields) : null,
    body: () => h("div", {}, compared ? example(compared) : null,
      signedBars("Advantages", bars(advantages.completions, rewards.completions)).element,
      source.rewards === undefined ? h("p", { class: "note" }, "The bars are the advantages that the run recorded.") : null),
  };
}

function bars(advantages, completions) {
  return advantages.map((value, index) =>
    ({ name: String(index), value: completions[index].reward === null ? null : value, said: "invalid" }));
}

function advantageEquation({ baseline, scale }) {
  const ofOthers = [fraction("1", [h("i", {}, "n"), " \u2212 1"]), " ", v("\u2211", "j \u2260 i"), " ", v("r", "j")];
  const [said, less] = {
    mean: ["the mean mu", [" \u2212 ", MEAN()]],
    leave_one_out: ["the mean of the other rewards", [" \u2212 ", ofOthers]],
    batch_mean: ["the mean of the batch", [" \u2212 ", v("\u03bc", "B")]],
    constant: ["a constant b", [" \u2212 ", h("i", {}, "b")]],
  }[baseline] ?? ["nothing", []];
  const whole = [REWARD(), ...less];
  if (scale === "none") return equation(`advantage A i is reward r i less ${said}`, ADVANTAGE(), " = ", whole);
  const divisor = scale === "batch_std" ? v("\u03c3", "B") : DEVIATION();
  return equation(`advantage A i is reward r i less ${said}, over the deviation sigma plus epsilon`,
    ADVANTAGE(), " = ", fraction(whole, [divisor, " + ", h("i", {}, "\u03f5")]));
}

/** The first completion that has one, in numbers. */
function example({ worked: { rewards, baselines, deviations, divisor, advantages }, fields: { eps }, degenerate, why }) {
  const index = rewards.findIndex((reward) => reward !== null);
  if (index < 0 || degenerate) return h("p", {}, why);
  const [less, gap] = [plain(baselines[index]), plain(deviations[index])];
  const above = `Completion ${index}: ${plain(rewards[index])} \u2212 ${baselines[index] < 0 ? `(${less})` : less} = `;
  if (divisor === null) return h("p", {}, above, h("b", {}, withSign(deviations[index])), ".");
  return h("p", {}, above, `${gap}, and ${gap} / ${plain(divisor)} = `, h("b", {}, withSign(advantages[index])),
    `. The divisor has \u03f5 = ${plain(eps)} in it.`);
}

// The ratio and the surrogate: what the run maximises, how far it trusts a ratio, and the ratios that it had.
import { h } from "../dom.js";
import { column, plain } from "../numbers.js";
import { percent } from "../text.js";
import { ADVANTAGE, equation, fraction, POLICY, RATIO, remark, SAMPLER, TOKEN, TOKEN_ADVANTAGE, v } from "./equation.js";
import { asRows, figures, indexHead } from "./figures.js";
import { objective } from "./objective.js";

const TITLES = { clip: "Ratio and clip", cispo: "Ratio and its bound", plain: "Ratio" };
const MAXIMISED = {
  clip: "What is maximised is ratio times advantage, until the ratio has left the clip range in the direction that the advantage pushes.",
  cispo: "Cut to its bounds, and taken as a fixed number, it is the weight of the token: what is maximised is weight times advantage " +
    "times log-prob.",
  plain: "What is maximised is ratio times advantage. Nothing is clipped.",
};
const WHY = "The completions were drawn from the policy as it was. The further it moves, the less they say about it";
const WHYS = {
  clip: `${WHY}, so beyond the bound there is nothing more to gain.`,
  cispo: `${WHY}, so the weight is bounded. But every token goes on learning, the ones beyond the bound as well.`,
  plain: "The completions were drawn from the policy as it was. The ratio corrects for what has changed since, and nothing bounds it.",
};
const ACTS = { clip: "no clip acts", cispo: "no weight is bounded", plain: "it changes nothing" };

export function clipStage({ algorithm, source, stages: { ratio, advantages } }) {
  const { surrogate, ratio: level } = algorithm;
  return {
    key: "ratio",
    title: TITLES[surrogate],
    next: TITLES[surrogate].toLowerCase(),
    happens: `${level === "sequence"
      ? "One ratio for the whole completion says how much likelier the policy makes its tokens now than when they were written: the " +
        "geometric mean of the ratios of its tokens."
      : "The ratio says how much likelier the policy makes a token now than when it was written."} ${MAXIMISED[surrogate]}`,
    why: WHYS[surrogate],
    watch: watched(algorithm),
    equation: [ratioEquation(level), ...surrogateEquations(algorithm), settings(algorithm)],
    body: () => h("div", {}, objective(advantages, algorithm, source.rewards === undefined), recorded(ratio, algorithm)),
  };
}

function watched({ surrogate, updates_per_batch: updates }) {
  if (updates === 1) return `With one update per batch, as here, every ratio is 1 and ${ACTS[surrogate]}.`;
  return `In the first of the ${updates} updates on a batch every ratio is 1 and ${ACTS[surrogate]}.`;
}

const rho = ({ ratio }) => (ratio === "sequence" ? v("s", "i") : RATIO());
const rhoSaid = ({ ratio }) => (ratio === "sequence" ? "s i" : "rho i t");
const own = ({ credit }) => (credit === "completion" ? ADVANTAGE() : TOKEN_ADVANTAGE());

function ratioEquation(level) {
  const odds = fraction([POLICY(), "(", TOKEN(), ")"], [SAMPLER(), "(", TOKEN(), ")"]);
  if (level === "token") {
    return equation("the ratio rho i t is pi theta of the token over pi old of the token", RATIO(), " = ", odds);
  }
  return equation(
    "the ratio s i of the completion is e to the mean, over its T i tokens, of the log of pi theta of the token over pi old of the token",
    v("s", "i"), " = exp ( ", fraction("1", v("T", "i")), " ", v("\u2211", "t"), " log ", odds, " )");
}

function surrogateEquations(algorithm) {
  const [ratio, said] = [rho(algorithm), rhoSaid(algorithm)];
  const clip = () => ["clip(", rho(algorithm), ", 1 \u2212 ", v("\u03b5", "low"), ", 1 + ", v("\u03b5", "high"), ")"];
  const between = `${said} clipped to between one minus epsilon low and one plus epsilon high`;
  const surrogate = {
    plain: () => equation(`S i t is ${said} times A`, v("S", "i,t"), " = ", ratio, " ", own(algorithm)),
    clip: () => equation(`S i t is the smaller of ${said} times A, and ${between}, times A`,
      v("S", "i,t"), " = min ( ", ratio, " ", own(algorithm), " , ", clip(), " ", own(algorithm), " )"),
    cispo: () => equation(`S i t is ${between}, without gradient, times A, times the log of pi theta of the token`,
      v("S", "i,t"), " = sg [ ", clip(), " ] ", own(algorithm), " log ", POLICY(), "(", TOKEN(), ")"),
  }[algorithm.surrogate]();
  return algorithm.dual_clip === null ? [surrogate] : [surrogate, dualEquation(algorithm)];
}

function dualEquation(algorithm) {
  return equation("where A is below 0, S i t is at least c times A",
    v("S", "i,t"), " \u2190 max ( ", v("S", "i,t"), " , ", h("i", {}, "c"), " ", own(algorithm), " ) where ", own(algorithm), " < 0");
}

function settings({ surrogate, clip_low: low, clip_high: high, dual_clip: dual }) {
  if (surrogate === "plain") return null;
  const without = surrogate === "cispo" ? " sg[ ] is a number without gradient." : "";
  return remark("Here ", v("\u03b5", "low"), ` = ${plain(low)} and `, v("\u03b5", "high"), ` = ${plain(high)}: the ratio is trusted from `,
    `${plain(1 - low)} to ${plain(1 + high)}.`, dual === null ? null : [" ", h("i", {}, "c"), ` = ${plain(dual)}.`], without);
}

/** What the ratios of this group were in its run. */
function recorded({ completions, level, bounds }, { updates_per_batch: updates }) {
  const reasons = [...new Set(completions.map(({ reason }) => reason))];
  if (reasons.length === 1 && reasons[0]) return h("p", { class: "note" }, `In this group: ${reasons[0]}.`);
  const [heads, columns] = level === "token" ? ofTokens(completions, bounds) : ofCompletions(completions, bounds);
  const each = level === "token" ? "one for each token" : "one for each completion";
  return h("details", {},
    h("summary", {}, `Ratios of this group when it was last learned from (${each}; ${updates} updates on a batch)`),
    figures("Ratios of this group", [indexHead(), ...heads], asRows([completions.map((_, index) => String(index)), ...columns])));
}

function ofTokens(completions, bounds) {
  const of = (name) => completions.map((one) => one[name]);
  const ratios = [column(of("mean")), column(of("max"))];
  if (bounds.length === 0) return [["mean ratio", "largest"], ratios];
  const share = (name) => of(name).map(percent);
  return [["mean ratio", "largest", "clipped below", "clipped above"], [...ratios, share("clip_low_fraction"), share("clip_high_fraction")]];
}

function ofCompletions(completions, bounds) {
  const ratios = column(completions.map(({ mean }) => mean), { digits: 6 });
  if (bounds.length === 0) return [["ratio"], [ratios]];
  const side = ({ clip_low_fraction: low, clip_high_fraction: high }) => (low > 0 ? "below" : high > 0 ? "above" : "no");
  return [["ratio", "clipped"], [ratios, completions.map(side)]];
}

// How a run makes advantages of rewards, as equations of docs/algorithms.md.
import { h } from "../dom.js";
import { plain } from "../numbers.js";
import { ADVANTAGE, DEVIATION, equation, fraction, MEAN, power, remark, TOKEN_ADVANTAGE, v } from "./equation.js";

const EPS = () => h("i", {}, "\u03f5");
const TOKEN_REWARD = () => v("r", "i,t");
const TO_COME = () => v("\u00c2", "i,t");

/** What is compared: the reward r, or R, what the KL has left of it. */
export function letterOf({ credit, kl_in: where, kl_coef: coefficient }) {
  return credit === "completion" && where === "reward" && coefficient > 0 ? "R" : "r";
}

export function advantageEquations(algorithm) {
  const { credit, reward_mix: mix } = algorithm;
  if (credit === "step") return stepEquations();
  if (credit === "token") return tokenEquations(algorithm);
  return mix === "normalise_then_sum" ? [mixEquation(algorithm)] : [compared(algorithm, letterOf(algorithm))];
}

function compared({ baseline, scale }, letter) {
  const { said, parts } = subtracted(baseline, letter);
  const whole = [v(letter, "i"), parts];
  if (scale === "none") return equation(`advantage A i is the reward less ${said}`, ADVANTAGE(), " = ", whole);
  return equation(`advantage A i is the reward less ${said}, over the deviation sigma plus epsilon`,
    ADVANTAGE(), " = ", fraction(whole, divisor(scale)));
}

function subtracted(baseline, letter) {
  const ofOthers = () => [fraction("1", [h("i", {}, "n"), " \u2212 1"]), " ", v("\u2211", "j \u2260 i"), " ", v(letter, "j")];
  return {
    mean: { said: "the mean mu", parts: [" \u2212 ", MEAN()] },
    leave_one_out: { said: "the mean of the other rewards", parts: [" \u2212 ", ofOthers()] },
    batch_mean: { said: "the mean of the batch", parts: [" \u2212 ", v("\u03bc", "B")] },
    constant: { said: "a constant b", parts: [" \u2212 ", h("i", {}, "b")] },
  }[baseline] ?? { said: "nothing", parts: [] };
}

function divisor(scale) {
  return [scale === "batch_std" ? v("\u03c3", "B") : DEVIATION(), " + ", EPS()];
}

function mixEquation({ scale, baseline }) {
  const own = v("r", "i,m");
  const less = { mean: [" \u2212 ", v("\u03bc", "m")], leave_one_out: [" \u2212 ", v("\u03bc", "m, j \u2260 i")], batch_mean: [" \u2212 ", v("\u03bc", "B,m")] }[baseline] ?? [];
  const over = scale === "batch_std" ? v("\u03c3", "B,m") : v("\u03c3", "m");
  const part = scale === "none" ? [" ( ", own, less, " )"] : [" ", fraction([own, less], [over, " + ", EPS()])];
  return equation("advantage A i is the sum over the reward functions m of weight omega m times the advantage that this reward alone would give",
    ADVANTAGE(), " = ", v("\u2211", "m"), " ", v("\u03c9", "m"), part);
}

function stepEquations() {
  const normalised = () => v("r\u0303", "i,k");
  return [
    equation("the normalised reward of step k is its reward less the mean mu of all steps of the group, over their deviation sigma plus epsilon",
      normalised(), " = ", fraction([v("r", "i,k"), " \u2212 ", MEAN()], divisor("group_std"))),
    equation("the advantage of token t is the sum of the normalised rewards of the steps k that end at or after it",
      TOKEN_ADVANTAGE(), " = ", v("\u2211", "k: end(k) \u2265 t"), " ", normalised()),
  ];
}

/** Rewards to come of each token, or what they are beyond a critic's expectation; then what the batch makes of them. */
function tokenEquations(algorithm) {
  const { baseline, scale, gamma, lam } = algorithm;
  const centred = baseline === "batch_mean" || (scale === "batch_std" && baseline !== "none");
  const result = centred || scale === "batch_std" ? TO_COME : TOKEN_ADVANTAGE;
  const critic = baseline === "critic";
  const settings = critic ? remark("Here ", h("i", {}, "\u03b3"), ` = ${plain(gamma)}, `, h("i", {}, "\u03bb"), ` = ${plain(lam)}; the value after the last token is 0.`)
    : remark("Here ", h("i", {}, "\u03b3"), ` = ${plain(gamma)}.`);
  return [tokenReward(algorithm), ...(critic ? estimated(result) : [toCome(result)]),
    result === TO_COME ? overBatch(centred, scale === "batch_std") : null, settings];
}

function tokenReward({ baseline, scale, kl_in: where, kl_coef: coefficient }) {
  const end = h("span", {}, "1[", h("i", {}, "t"), " = ", v("T", "i"), "]");
  const anchored = where === "reward" && coefficient > 0;
  const anchor = anchored ? [" \u2212 ", h("i", {}, "\u03b2"), " ", v("D", "i,t")] : [];
  const said = anchored ? ", less beta times D i t" : "";
  const own = () => v("r", "i");
  if (baseline === "mean" || baseline === "leave_one_out") {
    const gap = [own(), subtracted(baseline, "r").parts];
    const judged = scale === "group_std" ? fraction(gap, divisor(scale)) : ["(", gap, ")"];
    return equation(`the reward of a token is, at the last token, what the group makes of the completion's reward${said}`,
      TOKEN_REWARD(), " = ", end, " ", judged, anchor);
  }
  const constant = baseline === "constant" ? ["(", own(), " \u2212 ", h("i", {}, "b"), ")"] : own();
  return equation(`the reward of a token is, at the last token, that of the completion${said}`, TOKEN_REWARD(), " = ", end, " ", constant, anchor);
}

function toCome(result) {
  return equation("what a token can still earn is the sum of the rewards at and after it, each discounted by gamma",
    result(), " = ", v("\u2211", "s \u2265 t"), " ", power(h("i", {}, "\u03b3"), h("i", {}, "s\u2212t")), " ", v("r", "i,s"));
}

function estimated(result) {
  const value = (at) => h("span", {}, v("V", "\u03d5"), "(", h("i", {}, "t"), at, ")");
  const discount = () => h("i", {}, "\u03b3");
  return [
    equation("the surprise delta at token t is its reward plus gamma times the value after it, less the value before it",
      v("\u03b4", "i,t"), " = ", TOKEN_REWARD(), " + ", discount(), " ", value(" + 1"), " \u2212 ", value("")),
    equation("generalised advantage estimation: the sum of the surprises at and after the token, each discounted by gamma times lambda",
      result(), " = ", v("\u2211", "l \u2265 0"), " ", power(["(", discount(), h("i", {}, "\u03bb"), ")"], h("i", {}, "l")), " ", v("\u03b4", "i,t+l")),
  ];
}

function overBatch(centred, scaled) {
  const gap = [TO_COME(), centred ? [" \u2212 ", v("\u03bc", "B")] : null];
  const said = `the advantage is that${centred ? " less its mean over the tokens of the batch" : ""}${scaled ? ", over its deviation there plus epsilon" : ""}`;
  return equation(said, TOKEN_ADVANTAGE(), " = ", scaled ? fraction(gap, divisor("batch_std")) : gap);
}

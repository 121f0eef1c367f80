// The formulas of a run by its algorithm, as docs/algorithms has them, each with the sentence that is read aloud.
import { h, s } from "../dom.js";
import { plain } from "../numbers.js";
import { filled } from "./walk.js";

const POLICY = "π_θ(o_{i,t})", SAMPLER = "π_{old}(o_{i,t})", REFERENCE = "π_{ref}(o_{i,t})";

/** Whether the KL is taken off the reward of the whole completion, or of its tokens. */
export function isAnchored({ kl_in: where, kl_coef: coefficient }) {
  return where === "reward" && coefficient > 0;
}

/** What is compared: the reward r, or R, what the KL has left of it. */
function letterOf(algorithm) {
  return algorithm.credit === "completion" && isAnchored(algorithm) ? "R" : "r";
}

// Rewards

export function rewardEquations(algorithm, some) {
  const whole = `reward r i is the sum over the reward functions m${some ? " of whole completions" : ""} of weight omega m times reward r i m`;
  const sum = equation(whole, "r_i = ∑_m ω_m r_{i,m}");
  // Otherwise each token has a penalty of its own.
  return [sum, letterOf(algorithm) === "R" ? equation("the compared reward R i is r i less beta times the sum of the KL " +
    "estimates D i t over the tokens", "R_i = r_i − β ∑_t D_{i,t}") : null];
}

// Statistics

export const meanOf = (set) => (set === "batch" ? "μ_B" : "μ");
export const deviationOf = (set) => (set === "batch" ? "σ_B" : "σ");

/** What a group is compared with: of several reward functions, that of the first. */
export function comparison({ compared, by_name: byName }) {
  return compared ?? Object.values(byName ?? {})[0] ?? null;
}

/** Of what the algorithm uses: the mean, and the deviation where it divides by one. */
export function statisticsEquations(algorithm, statistics, { std }) {
  const one = comparison(statistics), letter = letterOf(algorithm);
  if (!one) return [];
  return [
    one.mean_of ? equation("the mean mu is the sum of the rewards over their number n", `${meanOf(one.mean_of)} = frac{1}{n} ∑_i ${letter}_i`) : null,
    one.deviation_of ? deviationEquation(std[one.std] ?? std.population, deviationOf(one.deviation_of), `∑_i ( ${letter}_i − ${meanOf(one.deviation_of)} )^2`) : null,
  ];
}

function deviationEquation([said, below], sigma, squares) {
  return equation(`the deviation sigma is the root of the sum of the squared distances from the mean over n${said}`,
    `${sigma} = root{frac{1}{${below}} ${squares}}`);
}

export function stepStatisticsEquations({ std }, words) {
  return [
    equation("the mean mu is the sum of the rewards of all steps k of all completions i over their number n", "μ = frac{1}{n} ∑_{i,k} r_{i,k}"),
    deviationEquation(words.std[std], "σ", "∑_{i,k} ( r_{i,k} − μ )^2"),
  ];
}

// Advantages

export function advantageEquations(algorithm, words) {
  const { credit, reward_mix: mix } = algorithm;
  if (credit === "step") return stepEquations();
  if (credit === "token") return tokenEquations(algorithm, words);
  return mix === "normalise_then_sum" ? mixEquation(algorithm, words) : [comparedEquation(algorithm, letterOf(algorithm), words)];
}

/** In letters; as the algorithm itself writes it, where its baseline or its divisor has no letter here. */
function comparedEquation({ baseline, scale, formula }, letter, words) {
  const below = subtracted(words, baseline, letter), over = divisor(words, scale);
  if (!below || over === undefined) return equation(`advantage A i is ${formula}`, `A_i = ${formula.replaceAll(" - ", " − ")}`);
  const [said, less] = below;
  if (over === null) return equation(`advantage A i is the reward less ${said}`, `A_i = ${letter}_i${less}`);
  return equation(`advantage A i is the reward less ${said}, over ${words.scale[scale][2]}`,
    `A_i = frac{${letter}_i${less}}{${over}}`);
}

const subtracted = ({ baseline }, name, letter) => baseline[name]?.map((one) => filled(one, { letter }));

/** What divides, by the place of its text; null = nothing. */
const divisor = ({ scale }, name, place = 0) => (scale[name] === null ? null : scale[name]?.[place]);

/** The same for each reward function m by itself. */
function mixEquation({ scale, baseline, formula }, words) {
  const less = words.baseline[baseline]?.[2], over = divisor(words, scale, 1), part = `r_{i,m}${less}`;
  const known = less !== undefined && over !== undefined;
  const alone = known ? over === null ? `( ${part} )` : `frac{${part}}{${over}}` : "A_{i,m}";
  return [
    equation("advantage A i is the sum over the reward functions m of weight omega m times the advantage that this reward alone would give",
      `A_i = ∑_m ω_m ${alone}`),
    known ? null : equation(`the advantage that reward m alone would give is ${formula}`, `A_{i,m} = ${formula.replaceAll(" - ", " − ")}`),
  ];
}

function stepEquations() {
  return [
    equation("the normalized reward of step k is its reward less the mean mu of all steps of the group, over their deviation sigma plus epsilon",
      "r\u0303_{i,k} = frac{r_{i,k} − μ}{σ + ϵ}"),
    equation("the advantage of token t is the sum of the normalized rewards of the steps k that end at or after it",
      "A_{i,t} = ∑_{k: end(k) ≥ t} r\u0303_{i,k}"),
  ];
}

/** Rewards to come of each token, or what they are beyond a critic's expectation; then what the batch makes of them. */
function tokenEquations(algorithm, words) {
  const { baseline, scale, gamma, lam } = algorithm;
  const centered = baseline === "batch_mean" || (scale === "batch_std" && baseline !== "none"), scaled = scale === "batch_std";
  const result = centered || scaled ? "\u00c2_{i,t}" : "A_{i,t}", critic = baseline === "critic";
  const gap = `\u00c2_{i,t}${centered ? " − μ_B" : ""}`;
  return [
    tokenReward(algorithm, words),
    ...(critic ? [
      equation("the temporal-difference error delta at token t is its reward plus gamma times the value after it, less the value before it",
        "δ_{i,t} = r_{i,t} + γ V_ϕ(t + 1) − V_ϕ(t)"),
      equation("generalized advantage estimation: the sum of the temporal-difference errors at and after the token, each discounted by gamma times lambda",
        `${result} = ∑_{l ≥ 0} (γλ)^l δ_{i,t+l}`),
    ] : [equation("the return of a token is the sum of the rewards at and after it, each discounted by gamma",
      `${result} = ∑_{s ≥ t} γ^{s−t} r_{i,s}`)]),
    centered || scaled ? equation(`the advantage is the return${centered ? " less its mean over the tokens of the batch" : ""}` +
      `${scaled ? ", over its deviation there plus epsilon" : ""}`, `A_{i,t} = ${scaled ? `frac{${gap}}{${divisor(words, scale)}}` : gap}`) : null,
    remark(`Here γ = ${plain(gamma)}${critic ? `, λ = ${plain(lam)}; the value after the last token is 0.` : "."}`),
  ];
}

function tokenReward(algorithm, words) {
  const { baseline, scale } = algorithm, anchored = isAnchored(algorithm);
  const [cost, said] = anchored ? [" − β D_{i,t}", ", less beta times D i t"] : ["", ""];
  const end = "r_{i,t} = 1[t = T_i]";
  if (baseline === "mean" || baseline === "leave_one_out") {
    const gap = `r_i${subtracted(words, baseline, "r")[1]}`;
    return equation(`the reward of a token is, at the last token, the completion's reward compared with the group${said}`,
      `${end} ${scale === "group_std" ? `frac{${gap}}{${divisor(words, scale)}}` : `(${gap})`}${cost}`);
  }
  return equation(`the reward of a token is, at the last token, the reward of the completion${said}`,
    `${end} ${baseline === "constant" ? "(r_i − b)" : "r_i"}${cost}`);
}

// Ratio and surrogate

export function ratioEquations(algorithm, words) {
  const { ratio: level, surrogate, dual_clip: dual, credit } = algorithm;
  const odds = `frac{${POLICY}}{${SAMPLER}}`, own = words.credit[credit] ?? "A", [rho, said] = words.letter[level] ?? words.letter.token;
  const clip = `clip(${rho}, 1 − ε_{low}, 1 + ε_{high})`, between = `${said} clipped to between one minus epsilon low and one plus epsilon high`;
  const [spoken, written] = (words.equation[surrogate] ?? [surrogate, surrogate]).map((one) => filled(one, { said, between, rho, own, clip, policy: POLICY }));
  return [
    level === "token" ? equation("the ratio rho i t is pi theta of the token over pi old of the token", `ρ_{i,t} = ${odds}`)
      : equation("the ratio s i of the completion is e to the mean, over its T i tokens, of the log of pi theta of the token over pi old of the token",
        `s_i = exp ( frac{1}{T_i} ∑_t log ${odds} )`),
    equation(spoken, `S_{i,t} = ${written}`),
    dual === null ? null : equation("where A is below 0, S i t is at least c times A", `S_{i,t} ← max ( S_{i,t} , c ${own} ) where ${own} < 0`),
    clipSettings(algorithm),
  ];
}

function clipSettings({ surrogate, clip_low: low, clip_high: high, dual_clip: dual, tau_pos: pos, tau_neg: neg, ...more }) {
  if (surrogate === "vespo") return remark(`Here k = ${plain(more.k_pos)} and λ = ${plain(more.lambda_pos)} where the advantage is 0 or more, k = ${plain(more.k_neg)} and λ = ${plain(more.lambda_neg)} elsewhere. sg[ ] stops the gradient.`);
  if (["plain", "sapo"].includes(surrogate)) return surrogate === "plain" ? null : remark(`Here τ = ${plain(pos)} where the advantage is above 0, and ${plain(neg)} elsewhere. σ(x) = 1 / (1 + e^{−x}).`);
  return remark(`Here ε_{low} = ${plain(low)} and ε_{high} = ${plain(high)}: the trust region of the ratio is ${plain(1 - low)} to ${plain(1 + high)}.` +
    `${dual === null ? "" : ` c = ${plain(dual)}.`}${surrogate === "cispo" ? " sg[ ] stops the gradient." : ""}`);
}

// The KL

/** What is taken off the reward was known when the completion was written: it is the sampler's. */
export function klEquations(algorithm, words) {
  const { kl: kind, kl_coef: coefficient, credit } = algorithm, rewarded = isAnchored(algorithm);
  if (!(coefficient > 0)) return null;
  const [name, policy] = rewarded ? ["pi old", SAMPLER] : ["pi theta", POLICY];
  const [said, written] = (words.estimate[kind] ?? [kind, kind]).map((one) => filled(one, { name, policy, reference: REFERENCE }));
  const reward = credit === "completion"
    ? ["the compared reward R i is r i less beta times the sum of D i t over the tokens t", "R_i = r_i − β ∑_t D_{i,t}"]
    : ["the reward of token t loses beta times D i t", "r_{i,t} ← r_{i,t} − β D_{i,t}"];
  return [equation(`the estimate D i t, ${kind}, is ${said}`, `D_{i,t} = ${written}`), rewarded ? equation(...reward) : null,
    remark(`Here β = ${plain(coefficient)}${rewarded ? "." : ", its weight in the loss."}`)];
}

// The loss

export function lossEquations({ aggregate, kl_in: where, kl_coef: coefficient, kl_unbiased: weighed, ratio: level, drift_coef: drift }, words) {
  const [said, below] = words.weight[aggregate] ?? [aggregate, aggregate], anchored = where === "loss" && coefficient > 0;
  const [times, rho] = !weighed ? ["", ""] : level === "sequence" ? [" times s i", "s_i "] : [" times rho i t", "ρ_{i,t} "];
  return [equation(`the loss J is the sum over completions i and tokens t of the weight w i t times minus S i t${anchored ? ` plus beta${times} times D i t` : ""}${drift > 0 ? " plus c times the square of the log of pi theta over pi old of the token" : ""}`,
    `J = ∑_{i,t} w_{i,t} ( −S_{i,t}${anchored ? ` + β ${rho}D_{i,t}` : ""}${drift > 0 ? ` + c ( log frac{${POLICY}}{${SAMPLER}} )^2` : ""} )`),
  equation(`the weight w i t is ${said}`, `w_{i,t} = frac{1}{${below}}`), drift > 0 ? remark(`Here c = ${plain(drift)}.`) : null];
}

// Equations as HTML, in the notation of docs/algorithms.md: `_` and `^` set what follows lower or higher, frac{a}{b} and
// root{a} draw a fraction and a root. One letter by itself is a variable.

const PIECE = /^(?:(?<drawn>frac|root)(?=\{)|(?<moved>[_^])|(?<letter>(?!a\b)\p{L}\p{M}?)(?!\p{L})|\p{L}{2,}|[^\p{L}_^]+|.)/u;

/** A line of mathematics, and how it is read aloud. */
const equation = (spoken, text) => h("div", { class: "equation", role: "math", "aria-label": spoken }, math(text));

/** The same within a sentence. */
export function term(spoken, text) {
  return h("span", { class: "term", role: "math", "aria-label": spoken }, math(text));
}

/** What the letters of an equation are in this run, or another word about it. */
const remark = (text) => h("p", { class: "note remark" }, math(text));

export function math(text) {
  const nodes = [];
  for (let rest = text; rest;) {
    const { 0: piece, groups: { drawn, moved, letter } } = PIECE.exec(rest);
    rest = rest.slice(piece.length);
    const inside = () => {
      const part = rest.startsWith("{") ? braced(rest) : rest.slice(0, 1);
      rest = rest.slice(part.length);
      return math(part.replace(/^\{(.*)\}$/su, "$1"));
    };
    if (moved) nodes.push(h("span", { class: "letter" }, nodes.pop() ?? null, h(moved === "_" ? "sub" : "sup", {}, inside())));
    else if (drawn === "frac") nodes.push(h("span", { class: "fraction" }, h("span", {}, inside()), h("span", {}, inside())));
    else if (drawn) nodes.push(h("span", { class: "root" }, rootSign(), h("span", { class: "root-of" }, inside())));
    else nodes.push(letter ? h("i", {}, piece) : piece);
  }
  return nodes;
}

/** What stands in the braces at the beginning, with them. */
function braced(text) {
  let depth = 0;
  const end = [...text].findIndex((sign) => (depth += { "{": 1, "}": -1 }[sign] ?? 0) === 0);
  return [...text].slice(0, end + 1).join("");
}

/** As high as what stands under the root. */
function rootSign() {
  const size = { viewBox: "0 0 10 20", preserveAspectRatio: "none", "aria-hidden": "true" };
  return s("svg", { class: "root-sign", ...size }, s("path", { d: "M0.5 12.5 L3 11 L6 19.5 L10 0" }));
}

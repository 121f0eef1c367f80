// The KL to the reference: drag how far a token's log-prob has moved, see three estimates and their gradients.
import { h, put } from "../dom.js";
import { column, plain, withSign } from "../numbers.js";
import { byCompletion, figures } from "../table.js";
import { asking } from "../address.js";
import { klEquations } from "./formulas.js";
import { linePlot, nearest } from "./plot.js";
import { math } from "./stages.js";

const KINDS = [["k1", 2], ["k2", 3], ["k3", 1]];
// What is drawn, under which title, the name of its axis, and how much of it.
const PARTS = [
  ["value", "Estimate of the KL", "estimate, in nats", [-3.5, 8]],
  ["gradient", "Gradient with respect to the log-prob", "gradient", [-8, 3.5]],
];
const BEGINS = 1; // of the handle
const DEFINED = "Three estimates of a token: k1 = −x, k2 = x^2 / 2, k3 = e^x − 1 − x, with x = log ( π_{ref} / π_θ ).";

export function klStage({ algorithm, stages: { kl } }, { kl: words }) {
  return {
    key: "kl",
    ...words,
    happens: words.happens[algorithm.kl_coef > 0 ? algorithm.kl_in : "none"],
    equation: klEquations(algorithm),
    body: () => h("div", {}, curves(), recorded(kl, algorithm)),
  };
}

function curves() {
  const failed = h("p", { class: "error" });
  const [read, whole] = [h("div", { class: "read" }), h("div", {})];
  let answer = null;
  const moved = (index) => {
    for (const plot of plots) plot.move(index);
    put(read, readout(answer, index));
  };
  const plots = PARTS.map(([part, title, y]) => linePlot({
    label: `${title} of a token, by the log of pi ref over pi theta`,
    x: "x = log ( \u03c0 ref / \u03c0 \u03b8 ) of a token",
    y,
    handle: { name: `Log of pi ref over pi theta, ${part}s`, said: (index) => (answer ? spoken(answer, index, part) : "") },
    onmove: moved,
  }));
  asking("kl", (found) => {
    answer = found;
    plots.forEach((plot, place) => plot.show({
      grid: found.log_ratio,
      series: KINDS.map(([kind, look]) => ({ name: kind, look, values: found.kinds[kind][PARTS[place][0]] })),
      range: PARTS[place][3],
      marks: [{ at: 0 }],
    }));
    moved(nearest(found.log_ratio, BEGINS));
    put(whole, ofAPair(found.pair));
  }, (error) => put(failed, error.message)).now({});
  const titled = plots.map((plot, place) => h("section", {}, h("h3", {}, PARTS[place][1]), plot.element));
  return h("div", {}, failed, h("p", { class: "note" }, math(DEFINED)), h("div", { class: "two" }, titled), read, whole);
}

function spoken({ log_ratio: grid, kinds }, index, part) {
  return `${withSign(grid[index])}: ${KINDS.map(([kind]) => `${kind} ${withSign(kinds[kind][part][index])}`).join(", ")}`;
}

function readout({ log_ratio: grid, kinds }, index) {
  const at = grid[index];
  const [more, less] = at > 0 ? ["reference", "policy"] : ["policy", "reference"];
  const where = at === 0 ? "Policy and reference agree" : `The ${more} likes this token more than the ${less} does`;
  const of = (part) => column(KINDS.map(([kind]) => kinds[kind][part][index]), { sign: true });
  return [h("p", {}, h("i", {}, "x"), " = log ( \u03c0 ref / \u03c0 \u03b8 ) = ", h("b", {}, withSign(at)), `. ${where}.`),
    figures("Estimates and gradients at this point", ["", "estimate", "gradient"],
      [KINDS.map(([kind]) => kind), of("value"), of("gradient")])];
}

/** Over all tokens of a distribution: what the estimates come to, and where each of them pulls. */
function ofAPair({ policy, reference, kl, reverse_kl: reverse, exact_gradient: exact, reverse_gradient: other, kinds }) {
  const list = (values, sign) => column(values, { digits: 4, sign }).join(", ");
  const names = [...KINDS.map(([kind]) => kind), "KL(policy, reference)", "KL(reference, policy)"];
  const means = column([...KINDS.map(([kind]) => kinds[kind].expectation), kl, reverse]);
  const slopes = [...KINDS.map(([kind]) => kinds[kind].gradient), exact, other].map((values) => list(values, true));
  return h("details", {}, h("summary", {}, "Over a whole distribution: what each estimate comes to, and where it pulls"),
    h("p", { class: "note" }, `Three tokens, drawn from a policy with probabilities ${list(policy, false)}; those of the reference are ` +
      `${list(reference, false)}. Gradients are by the policy's three logits.`),
    figures("Estimates over a distribution", ["", "mean", "gradient as a loss"], [names, means, slopes]),
    h("p", { class: "note" }, "k1 has the right mean and no gradient at all, k2 pulls as KL(policy, reference) does, k3 as KL(reference, policy)."));
}

/** What the KL of this group was in its run. */
function recorded({ kind, coefficient, reason, completions, in: where }, { name }) {
  if (!completions) return h("p", { class: "note" }, `In this group: ${reason ?? "no KL was recorded"}.`);
  const inLoss = reason ? ` (${reason})` : "";
  const place = where === "loss" ? `into the loss${inLoss}` : "off the reward, estimated from the sampler's log-probs";
  const of = (part) => column(completions.map((one) => one[part]));
  return h("details", {},
    h("summary", {}, `In this group ${name} takes ${kind}, times \u03b2 = ${plain(coefficient)}, ${place}.`),
    byCompletion("KL of this group", [`${kind} per token, nats`, "sum over its tokens"],
      [of("mean"), of("sum")]));
}

// The KL to the reference: drag how far a token's log-prob has moved, see three estimates and their gradients.
import { h, put } from "../dom.js";
import { asking } from "./ask.js";
import { equation, fraction, POLICY, REFERENCE, TOKEN, v } from "./equation.js";
import { figures, indexHead, plain, withSign } from "./figures.js";
import { linePlot, nearest } from "./plot.js";

const KINDS = [["k1", 2], ["k2", 3], ["k3", 1]];
// What is drawn, under which title, and how much of it.
const PARTS = [["value", "Estimate of the KL", [-3.5, 8]], ["gradient", "Gradient with respect to the log-prob", [-8, 3.5]]];
const BEGINS = 1; // of the handle

export function klStage({ algorithm, stages: { kl } }) {
  const odds = () => fraction([REFERENCE(), "(", TOKEN(), ")"], [POLICY(), "(", TOKEN(), ")"]);
  return {
    key: "kl",
    title: "KL to the reference",
    next: "KL to the reference",
    happens: "A second term measures how far the policy is from the reference, a frozen copy of the model as it was. " +
      "An estimate of the KL is made of the two log-probs of each token.",
    why: "It holds the policy near the reference, so that it does not give up its language for a little more reward.",
    watch: "An estimate and its gradient are two things. The mean of k1 is the KL exactly, but as a loss it pulls nowhere. " +
      "The pull of k3, GRPO's, grows without bound where the policy has nearly given up what the reference likes.",
    equation: equation("the estimate D i t, k3, is pi ref over pi theta of the token, minus one, minus the log of that",
      v("D", "i,t"), " = ", odds(), " \u2212 1 \u2212 log ", odds()),
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
  const plots = PARTS.map(([part, title]) => linePlot({
    label: `${title} of a token, by the log of pi ref over pi theta`,
    x: "log ( \u03c0 ref / \u03c0 \u03b8 ) of a token",
    handle: { name: `Log of pi ref over pi theta, ${part}s`, said: (index) => (answer ? spoken(answer, index, part) : "") },
    onmove: moved,
  }));
  asking("kl", (found) => {
    answer = found;
    plots.forEach((plot, place) => plot.show({
      grid: found.log_ratio,
      series: KINDS.map(([kind, look]) => ({ name: kind, look, values: found.kinds[kind][PARTS[place][0]] })),
      range: PARTS[place][2],
      marks: [0],
    }));
    moved(nearest(found.log_ratio, BEGINS));
    put(whole, ofAPair(found.pair));
  }, (error) => put(failed, error.message)).now({});
  const titled = plots.map((plot, place) => h("section", {}, h("h3", {}, PARTS[place][1]), plot.element));
  return h("div", {}, failed, h("div", { class: "two" }, titled), read, whole);
}

function spoken({ log_ratio: grid, kinds }, index, part) {
  return `${withSign(grid[index])}: ${KINDS.map(([kind]) => `${kind} ${withSign(kinds[kind][part][index])}`).join(", ")}`;
}

function readout({ log_ratio: grid, kinds }, index) {
  const at = grid[index];
  const [more, less] = at > 0 ? ["reference", "policy"] : ["policy", "reference"];
  const where = at === 0 ? "Policy and reference agree" : `The ${more} likes this token more than the ${less} does`;
  const rows = KINDS.map(([kind]) => [kind, withSign(kinds[kind].value[index]), withSign(kinds[kind].gradient[index])]);
  return [h("p", {}, "log ( \u03c0 ref / \u03c0 \u03b8 ) = ", h("b", {}, withSign(at)), `. ${where}.`),
    figures("Estimates and gradients at this point", ["", "estimate", "gradient"], rows)];
}

/** Over all tokens of a distribution: what the estimates come to, and where each of them pulls. */
function ofAPair({ policy, reference, kl, reverse_kl: reverse, exact_gradient: exact, reverse_gradient: other, kinds }) {
  const list = (values, form) => values.map((value) => form(value, 3)).join(", ");
  const rows = [
    ...KINDS.map(([kind]) => [kind, plain(kinds[kind].expectation), list(kinds[kind].gradient, withSign)]),
    ["KL(policy, reference)", plain(kl), list(exact, withSign)],
    ["KL(reference, policy)", plain(reverse), list(other, withSign)],
  ];
  return h("details", {}, h("summary", {}, "Over a whole distribution: what each estimate comes to, and where it pulls"),
    h("p", { class: "note" }, `Three tokens, drawn from a policy with probabilities ${list(policy, plain)}; those of the reference are ` +
      `${list(reference, plain)}. Gradients are by the policy's three logits.`),
    figures("Estimates over a distribution", ["", "mean", "gradient as a loss"], rows),
    h("p", { class: "note" }, "k1 has the right mean and no gradient at all, k2 pulls as KL(policy, reference) does, k3 as KL(reference, policy)."));
}

/** What the KL of this group was in its run. */
function recorded({ kind, coefficient, reason, completions, in: where }, { name }) {
  if (!completions) return h("p", { class: "note" }, `In this group: ${reason ?? "no KL was recorded"}.`);
  const place = where === "loss" ? "as a term of the loss" : "off the reward";
  const rows = completions.map(({ mean, sum }, index) => [String(index), plain(mean), plain(sum)]);
  return h("details", {},
    h("summary", {}, `In this group ${name} takes ${kind}, times \u03b2 = ${plain(coefficient)}, ${place}${reason ? ` (${reason})` : ""}.`),
    figures("KL of this group", [indexHead(), `${kind} per token, nats`, "sum over its tokens"], rows));
}

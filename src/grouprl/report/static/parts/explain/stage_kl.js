// The KL to the reference: drag how far a token's log-prob has moved, see three estimates and their gradients.
import { h, put } from "../dom.js";
import { column, plain, withSign } from "../numbers.js";
import { asking } from "./ask.js";
import { equation, fraction, POLICY, power, REFERENCE, remark, REWARD, SAMPLER, TOKEN, v } from "./equation.js";
import { asRows, figures, indexHead } from "./figures.js";
import { linePlot, nearest } from "./plot.js";

const KINDS = [["k1", 2], ["k2", 3], ["k3", 1]];
// What is drawn, under which title, the name of its axis, and how much of it.
const PARTS = [
  ["value", "Estimate of the KL", "estimate, in nats", [-3.5, 8]],
  ["gradient", "Gradient with respect to the log-prob", "gradient", [-8, 3.5]],
];
const BEGINS = 1; // of the handle
const LOSS = "A second term measures how far the policy is from the reference, a frozen copy of the model as it was. " +
  "An estimate of the KL is made of the two log-probs of each token.";
const REWARDED = "Going away from the reference, a frozen copy of the model as it was, costs reward. An estimate of the KL is made of " +
  "two log-probs of each token, and taken off the reward before advantages are formed.";
const NONE = "Many runs measure how far the policy is from the reference, a frozen copy of the model as it was, and hold it back. " +
  "This one has no such term: its \u03b2 is 0.";

export function klStage({ algorithm, stages: { kl } }) {
  const anchored = algorithm.kl_coef > 0;
  const rewarded = algorithm.kl_in === "reward";
  return {
    key: "kl",
    title: "KL to the reference",
    next: "KL to the reference",
    happens: anchored ? (rewarded ? REWARDED : LOSS) : NONE,
    why: "It holds the policy near the reference, so that it does not give up its language for a little more reward.",
    watch: "An estimate and its gradient are two things. The mean of k1 is the KL exactly, but as a loss it pulls nowhere; taken off the " +
      "reward it pulls as the KL does. The pull of k3, GRPO's, grows without bound where the policy has nearly given up what the " +
      "reference likes.",
    equation: anchored ? [estimateEquation(algorithm.kl, rewarded), rewarded ? rewardEquation(algorithm) : null,
      remark("Here ", h("i", {}, "\u03b2"), ` = ${plain(algorithm.kl_coef)}`, rewarded ? "." : ", with which it enters the loss.")] : null,
    body: () => h("div", {}, curves(), recorded(kl, algorithm)),
  };
}

/** What is taken off the reward was known when the completion was written: it is the sampler's. */
function estimateEquation(kind, rewarded) {
  const policy = () => [(rewarded ? SAMPLER : POLICY)(), "(", TOKEN(), ")"];
  const reference = () => [REFERENCE(), "(", TOKEN(), ")"];
  const [name, over] = [rewarded ? "pi old" : "pi theta", () => fraction(policy(), reference())];
  const under = () => fraction(reference(), policy());
  const said = {
    k1: `the log of ${name} over pi ref of the token`,
    k2: `half the square of the log of ${name} over pi ref of the token`,
    k3: `pi ref over ${name} of the token, minus one, minus the log of that`,
  }[kind];
  const parts = {
    k1: () => ["log ", over()],
    k2: () => [fraction("1", "2"), " ( log ", over(), " )", power("", "2")],
    k3: () => [under(), " \u2212 1 \u2212 log ", under()],
  }[kind]();
  return equation(`the estimate D i t, ${kind}, is ${said}`, v("D", "i,t"), " = ", parts);
}

function rewardEquation({ credit }) {
  const cost = () => [" \u2212 ", h("i", {}, "\u03b2"), " "];
  if (credit === "completion") {
    return equation("the reward R i that is compared is r i less beta times the sum of D i t over the tokens t",
      v("R", "i"), " = ", REWARD(), cost(), v("\u2211", "t"), " ", v("D", "i,t"));
  }
  return equation("the reward of token t loses beta times D i t", v("r", "i,t"), " \u2190 ", v("r", "i,t"), cost(), v("D", "i,t"));
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
  return h("div", {}, failed, definitions(), h("div", { class: "two" }, titled), read, whole);
}

function definitions() {
  const x = () => h("i", {}, "x");
  return h("p", { class: "note" }, "Three estimates of a token: k1 = \u2212", x(), ", k2 = ", x(), power("", "2"), " / 2, k3 = ",
    power(h("i", {}, "e"), x()), " \u2212 1 \u2212 ", x(), ", with ", x(), " = log ( ", REFERENCE(), " / ", POLICY(), " ).");
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
      asRows([KINDS.map(([kind]) => kind), of("value"), of("gradient")]))];
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
    figures("Estimates over a distribution", ["", "mean", "gradient as a loss"], asRows([names, means, slopes])),
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
    figures("KL of this group", [indexHead(), `${kind} per token, nats`, "sum over its tokens"],
      asRows([completions.map((_, index) => String(index)), of("mean"), of("sum")])));
}

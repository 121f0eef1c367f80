// How a completion's numbers look: color, sign and pattern together, so that none of them has to be seen.
import { h } from "../dom.js";
import { counted, fixed, number, signed, visible } from "../text.js";

export const FULL = 2; // the advantage from which on a color has its full strength
const FAINTEST = 0.14; // of what is not 0

/** Class and strength of a signed number, as attributes for `tinted`. */
export function tint(value, full) {
  if (!value) return { tone: "zero", size: 0 };
  return { tone: value > 0 ? "plus" : "minus", size: FAINTEST + (1 - FAINTEST) * Math.min(1, Math.abs(value) / full) };
}

/** Gives an element the color of a tint. */
export function tinted(element, { tone, size }) {
  element.classList.add(tone);
  element.style.setProperty("--size", size.toFixed(3));
  return element;
}

const STOPS = { end: "ended", stop_string: "stop string", length: "truncated" };
const stopWords = (reason) => STOPS[reason] ?? visible(reason);

const SIGNALS = {
  signal: ["signal", "good", "The rewards differ: the group has a signal."],
  solved: ["solved", "", "Every completion is correct, and all rewards are equal: no signal."],
  hopeless: ["hopeless", "bad", "No completion is correct, and all rewards are equal: no signal."],
  equal: ["equal rewards", "warn", "All valid rewards are equal: no signal."],
  invalid: ["invalid", "bad", "Fewer than two rewards are valid: no signal."],
};

/** Whether a group's rewards differ, or why they do not; `completions` have a reward (null = invalid) and `correct`. */
export function kindOfGroup(signal, completions) {
  if (signal) return "signal";
  if (completions.filter(({ reward }) => reward !== null).length < 2) return "invalid";
  if (completions.every(({ correct }) => correct === true)) return "solved";
  return completions.every(({ correct }) => correct === false) ? "hopeless" : "equal";
}

export function signalMark(kind) {
  const [word, look, sentence] = SIGNALS[kind];
  return h("span", { class: `mark ${look}`, title: sentence }, word);
}

/** An advantage as a colored number. */
export function advantageMark(advantage) {
  return chip(shortSigned(advantage), advantage);
}

/** The same where the number is written already. */
export function chip(text, advantage) {
  return tinted(h("span", { class: "tint chip", title: "advantage" }, text), tint(advantage, FULL));
}

export function lengthMark({ length, stop_reason: reason }) {
  return h("span", { class: "note" }, `${counted(length, "token")}, ${stopWords(reason)}`);
}

export function correctMark(correct) { // nothing where no reward of the run says what is correct
  if (correct === null || correct === undefined) return null;
  return correct ? h("span", { class: "mark good" }, "\u2713 correct") : h("span", { class: "mark bad" }, "\u2717 wrong");
}

/** The function with its answers kept: numbers take a browser long to write, and a grid has few different ones. */
export function kept(written) {
  const known = new Map();
  return (value) => {
    if (known.size > 1000) known.clear();
    if (!known.has(value)) known.set(value, written(value));
    return known.get(value);
  };
}

const shortNumber = kept(number);
/** An advantage as a cell has it, and its label: who says what is seen has to reach it. */
export const shortSigned = kept((advantage) => {
  const size = Math.abs(advantage), even = size >= 0.005 && size < 100; // as many digits as its neighbors
  return even ? `${advantage > 0 ? "+" : ""}${fixed(advantage, 2)}` : signed(advantage, 2);
});

/** One completion in a sentence, for those who listen and for a hover. */
export function inWords(completion) {
  const judged = { true: ", correct", false: ", wrong" }[completion.correct] ?? "";
  const reward = completion.invalid ? "invalid reward" : `reward ${shortNumber(completion.reward)}`;
  return (
    `Completion ${completion.index}: ${reward}, advantage ${shortSigned(completion.advantage)}${judged}, ` +
    `${counted(completion.length, "token")}, ${stopWords(completion.stop_reason)}`
  );
}

/** What the colors and patterns of advantages mean. */
export function advantageLegend() {
  return h("div", { class: "row legend" },
    h("span", { class: "note" }, "Advantage"),
    scaleLegend(advantageSteps()),
    h("span", {}, h("span", { class: "tint invalid key" }), "invalid reward"),
    h("span", {}, "\u2713 correct"));
}

/** The colors of advantages, each with what it stands for. */
export function advantageSteps() {
  const ends = { [-FULL]: "\u2264 ", [FULL]: "\u2265 " };
  return stepsUpTo(FULL, (value) => (ends[value] ?? "") + signed(value));
}

/** Colors from `full` below 0 to `full` above it, each with what `write(value)` says of it. */
export function stepsUpTo(full, write) {
  return [-full, -full / 2, 0, full / 2, full].map((value) => [write(value), tint(value, full)]);
}

/** Colors with their words, side by side. */
export function scaleLegend(steps) {
  return h("span", { class: "scale" }, steps.map(([text, look]) => tinted(h("span", { class: "tint" }, text), look)));
}

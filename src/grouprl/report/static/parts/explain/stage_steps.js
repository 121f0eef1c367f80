// Rewards for steps: all steps of the group side by side, and the tokens that are credited with them.
import { h } from "../dom.js";
import { bracketed, column, equals, plain, withSign } from "../numbers.js";
import { DEVIATION, equation, fraction, MEAN, power, root, term, v } from "./equation.js";
import { asRows, figures, indexHead } from "./figures.js";

const MOST_TERMS = 8; // of a sum that is written out

export function stepStatisticsEquations({ std }) {
  const sum = () => v("\u2211", "i,k");
  const sample = std === "sample";
  return [
    equation("the mean mu is the sum of the rewards of all steps k of all completions i over their number n",
      MEAN(), " = ", fraction("1", h("i", {}, "n")), " ", sum(), " ", v("r", "i,k")),
    equation(`the deviation sigma is the root of the sum of their squared distances from the mean over n${sample ? " minus one" : ""}`,
      DEVIATION(), " = ", root(fraction("1", h("i", {}, sample ? "n \u2212 1" : "n")), " ", sum(),
        " ( ", v("r", "i,k"), " \u2212 ", MEAN(), " )", power("", "2"))),
  ];
}

export function stepStatistics({ n, sum, mean, deviation, sum_of_squares: squares, divided_by: divided, steps }) {
  if (n === 0) return h("p", {}, "No completion of this group has a valid reward.");
  const spread = deviation === null ? null : h("li", {}, term("sigma", DEVIATION()),
    ` = \u221a(${plain(squares)} / ${divided}) ${equals(deviation)}`, h("b", {}, plain(deviation)));
  return [
    h("ul", { class: "worked" },
      h("li", {}, term("mu", MEAN()), ` ${equals(sum)}${plain(sum)} / ${n} ${equals(mean)}`, h("b", {}, plain(mean)), ` over the ${n} steps below`),
      spread),
    table(steps)];
}

function table(rows) {
  const all = rows.flatMap((steps, completion) => steps.map((step, place) => ({ ...step, completion, place, last: place === steps.length - 1 })));
  const names = all.map(({ completion }) => String(completion));
  return figures("Steps of the group", [indexHead(), "step", "ends at token", ["reward ", v("r", "i,k")], ["normalised ", v("r\u0303", "i,k")]],
    asRows([names, all.map(({ place, last }) => (last ? "the completion" : String(place + 1))), all.map(({ end }) => String(end + 1)),
      column(all.map(({ reward }) => reward)), column(all.map(({ normalised }) => normalised), { sign: true })]));
}

/** The completion with the most steps: which tokens are credited with which of them. The sums are the recorded advantages. */
export function stepExample({ steps }, { tokens }) {
  const most = Math.max(...steps.map((row) => row.length));
  const index = steps.findIndex((row) => row.length === most);
  if (!tokens || most === 0) return null;
  const row = [...steps[index]].sort((one, other) => one.end - other.end);
  const stretches = row.map(({ end }, place) => ({ from: place ? row[place - 1].end + 1 : 0, end, left: row.slice(place) }));
  return h("div", {}, h("p", {}, `Completion ${index}, token by token: each is credited with the steps that end at or after it.`),
    h("ul", { class: "worked" }, stretches.filter(({ from, end }) => from <= end).map(({ from, end, left }) =>
      h("li", {}, `${from === end ? "token" : "tokens"} ${from === end ? "" : `${from + 1} to `}${end + 1}: `, added(left, tokens[index][end])))));
}

function added(steps, advantage) {
  const terms = steps.map(({ normalised }) => bracketed(normalised));
  const shown = terms.length > MOST_TERMS ? [...terms.slice(0, MOST_TERMS - 2), "\u2026", terms.at(-1)] : terms;
  return [shown.join(" + "), " ", equals(advantage), h("b", {}, withSign(advantage))];
}

// What a check of data found: what to do, pass rates, groups of each size with a signal, and the problems.
import { get } from "../parts/api.js";
import { h, put } from "../parts/dom.js";
import { signedBars } from "../parts/explain/bars.js";
import { table } from "../parts/table.js";
import { between, counted, duration, number, percent, share, visible, written } from "../parts/text.js";

const MOST = 200; // problems in the table

export async function render(root, { check }) {
  const { task, model, problems, groups, samples, group_size: own, band: [low, high], histogram, ...found } = await get(`data/${encodeURIComponent(check)}`);
  const { pass_rate: rate, pass_interval: ends, advice, truncated, max_tokens: most, train_problems: all, tokens_per_second: speed } = found;
  const inside = problems.filter(({ pass_rate: one }) => one !== null && one >= low && one <= high);
  const counts = Object.entries(histogram).map(([name, value]) => ({ name, value, text: number(value) }));
  const signals = groups.map(({ group_size: size, signal, is_unbiased: seen }) => ({ name: String(size), value: signal, text: `${seen ? "" : "~"}${share(signal)}` }));
  const costs = groups.map(({ group_size: size, interval, answers, is_unbiased: seen, tokens, seconds }) => [size === own ? `${size}, as in the run` : String(size),
    between(interval), answers === null ? "–" : `${seen ? "" : "~"}${share(answers)}`, tokens === null ? "–" : number(Math.round(tokens)), duration(seconds)]);
  const known = rate === null ? "The task has no verifier, so no pass rate is known."
    : `Pass rate ${share(rate)} (${between(ends)}); ${counted(inside.length, "problem")} between ${percent(low)} and ${percent(high)}.`;
  put(root,
    h("h1", {}, "Does this data fit this model?"),
    h("p", {}, `${visible(task)} for ${visible(model)}: ${counted(problems.length, "problem")} of ${number(all)}, ${counted(samples, "completion")} each. `,
      `${known} ${share(truncated)} of the completions reach ${counted(most, "token")} without an end.`),
    h("h2", {}, "What to do"), h("ul", { class: "card" }, advice.map((sentence) => h("li", {}, visible(sentence)))),
    counts.length ? [h("h2", {}, "Problems by the share of their completions that are correct"), h("div", { class: "card" }, signedBars("Problems", counts).element)] : null,
    h("h2", {}, "Groups whose rewards differ, by group size"),
    h("div", { class: "card" }, signedBars("Groups with a signal", signals).element),
    table("Cost of a group with a signal", ["Group size", "Signal, 95%", "Right and wrong answers", "Tokens", "Sampling"], costs),
    h("p", { class: "note" }, `Tokens and sampling: expected for one group with a signal, at ${number(speed)} sampled tokens a second on this machine. ~: of more completions than were sampled.`),
    h("h2", {}, "Problems"), listed(problems));
}

/** The problems that are solved most often first, as many as a page bears. */
function listed(problems) {
  const solved = problems.toSorted((one, other) => other.pass_rate - one.pass_rate || other.signal - one.signal);
  const rows = solved.slice(0, MOST).map(({ question, correct, samples, interval, pass_rate: rate, signal, mean_tokens: tokens }) => [written(question),
    correct === null ? "–" : `${correct} of ${samples} (${between(interval)})`, rate === null ? "–" : share(rate), share(signal), number(tokens)]);
  const left = problems.length - rows.length;
  return [table("Problems", ["Problem", "Correct, 95%", "Pass rate", "Signal", "Tokens"], rows), left > 0 && h("p", { class: "note" }, `${counted(left, "problem")} more.`)];
}

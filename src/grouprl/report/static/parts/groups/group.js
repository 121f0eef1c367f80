// One group: its problem, how its rewards become advantages, and its completions.
import { get } from "../api.js";
import { h } from "../dom.js";
import { address } from "./address.js";
import { completionCards } from "./completions.js";
import { problemCard } from "./prompt.js";
import { statisticsCard } from "./statistics.js";

/** {title, children, shown()} of a group; `shown` is called once it is in the page. */
export async function groupView(run, place, given) {
  const path = `runs/${encodeURIComponent(run)}/groups`;
  const [group, { total }] = await Promise.all([
    get(`${path}/${place.step}/${place.group}`), get(path, { step: place.step, limit: 1 })]);
  const cards = completionCards(run, place, group, given);
  const walk = new URLSearchParams({ run, step: place.step, group: place.group });
  const links = h("p", { class: "row" },
    h("a", { href: `#/step?${walk}` }, "This group step by step, from its prompt to the update"),
    h("a", { href: address(run, {}, { problem: group.problem_id }) }, "This problem through training"));
  return {
    title: `Group ${place.group} of step ${place.step}`,
    children: [
      neighbours(run, place, total),
      h("div", { class: "halves" }, problemCard(group, links), statisticsCard(group)),
      cards.element,
    ],
    shown: cards.open,
  };
}

function neighbours(run, { step, group }, total) {
  return h("nav", { class: "row", "aria-label": "Other groups" },
    h("a", { href: address(run, { step }, { at: `${group}.0` }) }, `All groups of step ${step}`),
    group > 0 ? h("a", { href: address(run, { step, group: group - 1 }) }, "\u2190 previous group") : null,
    group + 1 < total ? h("a", { href: address(run, { step, group: group + 1 }) }, "next group \u2192") : null);
}

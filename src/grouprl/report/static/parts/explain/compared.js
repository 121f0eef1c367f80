// One group under several algorithms: their advantages as bars on one scale, each with what it compares a reward with.
import { h, put } from "../dom.js";
import { plain } from "../numbers.js";
import { signedBars } from "./bars.js";
import { extent } from "./draw.js";

/** The algorithms side by side; each is {name, title}. Gives {element, show(answer)} for the lab's `advantages`. */
export function comparedAdvantages(algorithms) {
  const panels = algorithms.map(({ name, title }) => {
    const [bars, rule] = [signedBars(`Advantages under ${title}`, []), h("p", { class: "note" })];
    const element = h("section", { class: "card", "aria-label": title }, h("h3", {}, title), rule, bars.element);
    return { name, bars, rule, element };
  });
  return {
    element: h("div", { class: "four" }, panels.map(({ element }) => element)),
    show({ rewards, algorithms: found }) {
      const range = extent(panels.flatMap(({ name }) => found[name].advantages));
      for (const { name, bars, rule } of panels) {
        put(rule, ruleOf(found[name]));
        bars.update(rows(rewards, found[name]), range);
      }
    },
  };
}

const BASELINES = {
  mean: () => "less the group's mean",
  leave_one_out: () => "less the mean of the others",
  constant: ({ baseline_constant: constant }) => `less a constant, ${plain(constant)}`,
};
const SCALES = { group_std: ", over the group's deviation.", none: ", and nothing divides." };

function ruleOf({ fields }) {
  return `Reward ${BASELINES[fields.baseline](fields)}${SCALES[fields.scale]}`;
}

function rows(rewards, { advantages }) {
  return advantages.map((value, index) =>
    ({ name: String(index), value: rewards[index] === null ? null : value, said: "invalid" }));
}

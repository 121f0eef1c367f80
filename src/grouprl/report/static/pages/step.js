// GRPO step by step: one group from its prompt to what the update made of it.
import { file, get } from "../parts/api.js";
import { h, put } from "../parts/dom.js";
import { written } from "../parts/text.js";
import { keepAddress } from "../parts/address.js";
import { chooser, firstPlace, walkableRuns } from "../parts/explain/choose.js";
import { clipStage } from "../parts/explain/stage_clip.js";
import { completionsStage, promptStage, rewardsStage } from "../parts/explain/stage_group.js";
import { klStage } from "../parts/explain/stage_kl.js";
import { advantagesStage, statisticsStage } from "../parts/explain/stage_numbers.js";
import { lossStage, updateStage } from "../parts/explain/stage_update.js";
import { stages } from "../parts/explain/stages.js";

const STAGES = [
  promptStage, completionsStage, rewardsStage, statisticsStage, advantagesStage, clipStage, klStage, lossStage, updateStage,
];
const TYPED = "1,0,0,1"; // where there is nothing recorded

export async function render(page, parameters, query) {
  page.classList.add("explains");
  const [runs, words] = await Promise.all([walkableRuns(), file("stages.json")]);
  const asked = askedPlace(query);
  let stage = query.get("stage");
  let place = asked;
  const unknown = asked?.run && !runs.some(({ id }) => id === asked.run);
  put(page, h("h1", {}, "GRPO step by step"),
    h("p", { class: "lead" }, "One group on its way through a step of training, with the numbers that were used. Reveal a stage at a " +
      "time; everything you have seen stays above."));
  if (unknown) {
    page.append(chooser(runs, asked, () => stage), h("p", { class: "error", role: "alert" }, "No step was found of the run ",
      written(asked.run), ": it has none yet, or there is no such run. Choose another one above, or rewards of your own."));
    return undefined;
  }
  try {
    place = await placeOf(asked, runs);
    const group = await get("explain/group", place);
    const walk = stages(STAGES.map((made) => made(group, words)), {
      start: stage,
      onreveal(key) {
        stage = key;
        keepAddress("/step", { ...place, stage });
      },
    });
    page.append(chooser(runs, place, () => stage), about(group), walk.element);
    if (asked) walk.scroll();
    return walk.end;
  } catch (error) {
    page.append(chooser(runs, place ?? {}, () => stage), h("p", { class: "error" }, error.message));
    return undefined;
  }
}

function placeOf(asked, runs) {
  if (asked?.rewards || asked?.step) return asked;
  return asked || runs.length ? firstPlace(runs, asked?.run) : { rewards: TYPED };
}

/** What the address asks for; null where it leaves the choice to the page. */
function askedPlace(query) {
  const [rewards, algorithm] = [query.get("rewards"), query.get("algorithm")];
  if (rewards) return algorithm ? { rewards, algorithm } : { rewards };
  if (!query.get("run")) return null;
  if (!query.get("step")) return { run: query.get("run") };
  return { run: query.get("run"), step: Number(query.get("step")), group: Number(query.get("group") ?? 0) };
}

function about({ source, algorithm, notes }) {
  const which = source.rewards === undefined
    ? ["Step ", h("b", {}, String(source.step)), " of run ", h("b", {}, written(source.run)), ", group ",
      h("b", {}, String(source.group)), ` of ${source.groups} (counted from 0), trained with ${algorithm.name}.`]
    : [`${source.rewards.length} rewards of your own, with ${algorithm.name}.`];
  return h("div", {}, h("p", {}, which), notes.map((note) => h("p", { class: "note" }, note)));
}

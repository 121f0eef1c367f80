// GRPO step by step: one group from its prompt to what the update made of it.
import { get } from "../parts/api.js";
import { h, put } from "../parts/dom.js";
import { written } from "../parts/text.js";
import { keepAddress } from "../parts/explain/ask.js";
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
  const runs = await walkableRuns();
  const asked = askedPlace(query);
  let stage = query.get("stage");
  let place = asked;
  put(page, h("h1", {}, "GRPO step by step"),
    h("p", { class: "lead" }, "One group on its way through a step of training, with the numbers that were used. Reveal a stage at a " +
      "time; everything you have seen stays above."));
  try {
    place = asked ?? (runs.length ? await firstPlace(runs) : { rewards: TYPED });
    const group = await get("explain/group", place);
    const told = stages(STAGES.map((made) => made(group)), {
      start: stage,
      onreveal(key) {
        stage = key;
        keepAddress("/step", { ...place, stage });
      },
    });
    page.append(chooser(runs, place, () => stage), about(group), told.element);
    if (asked) told.scroll();
    return told.end;
  } catch (error) {
    page.append(chooser(runs, place ?? {}, () => stage), h("p", { class: "error" }, error.message));
    return undefined;
  }
}

function askedPlace(query) {
  if (query.get("rewards")) return { rewards: query.get("rewards") };
  if (!query.get("run")) return null;
  return { run: query.get("run"), step: Number(query.get("step") ?? 1), group: Number(query.get("group") ?? 0) };
}

function about({ source, algorithm, notes }) {
  const which = source.rewards === undefined
    ? ["Step ", h("b", {}, String(source.step)), " of run ", h("b", {}, written(source.run)), ", group ",
      h("b", {}, String(source.group)), ` of ${source.groups} (counted from 0), trained with ${algorithm.name}.`]
    : [`${source.rewards.length} rewards of your own, with ${algorithm.name}.`];
  return h("div", {}, h("p", {}, which), notes.map((note) => h("p", { class: "note" }, note)));
}

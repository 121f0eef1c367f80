// What the numbers of a group say, in sentences: every number in them is one that the lab gave.
import { column, equals, plain, withSign } from "../numbers.js";

const SHOWN = 4; // digits of an advantage
const MOST_NAMED = 4; // completions that are tied

/** Of the lab's `advantages`: sentences about silence, outliers and invalid completions. */
export function verdicts({ rewards, valid: count, algorithms }) {
  const valid = rewards.flatMap((reward, index) => (reward === null ? [] : [index]));
  const { grpo } = algorithms;
  const said = count < rewards.length ? [invalid(rewards, count)] : [];
  if (count > 1) said.push(spread(grpo, count === rewards.length ? `all ${count}` : `the ${count} valid`));
  return [...said, grpo.degenerate ? silent(rewards, valid, algorithms) : outlier(rewards, valid, algorithms)];
}

function spread({ mean, deviation, worked: { divided_by: divided } }, over) {
  const about = (value) => (equals(value) === "= " ? "" : "about ");
  return `Over ${over} rewards the mean is ${about(mean)}${plain(mean)}, the standard deviation ${about(deviation)}${plain(deviation)}. It is that ` +
    `of the population: the squared distances from the mean are divided by their number, ${divided}, not by one less.`;
}

function invalid(rewards, count) {
  const left = rewards.length - count;
  return `${left} of ${rewards.length} completions ${left === 1 ? "is" : "are"} invalid, for instance because the verifier failed: ` +
    "left out of the statistics, and never counted as a reward of 0.";
}

function silent(rewards, valid, { grpo, reinforce }) {
  const said = `${grpo.why} Such a group is degenerate: its completions were sampled and paid for, and GRPO, Dr.GRPO and RLOO ` +
    "learn nothing from it.";
  const moved = valid.find((index) => reinforce.advantages[index] !== 0);
  if (valid.length === 0) return said;
  if (moved === undefined) return `${said} REINFORCE is silent as well, because the rewards are ${plain(rewards[valid[0]])}.`;
  const still = withSign(reinforce.advantages[moved], SHOWN);
  return `${said} REINFORCE, which compares with a constant, still gives completion ${moved} an advantage of ${still}.`;
}

function outlier(rewards, valid, { grpo: { advantages: grpo }, dr_grpo: { advantages: bare } }) {
  const different = [...new Set(valid.map((index) => rewards[index]))];
  const kinds = different.map((reward) => valid.filter((index) => rewards[index] === reward));
  if (kinds.length === 2) return twoKinds(kinds.sort((one, other) => one.length - other.length), rewards, grpo, bare);
  const [most, least] = [strongest(valid, grpo, Math.max), strongest(valid, grpo, Math.min)];
  return `Under GRPO ${each(most, grpo)} ${most.length === 1 ? "counts" : "count"} most, ${each(least, grpo)} least. ` +
    `Without the division by the deviation (Dr.GRPO) these are ${each(most, bare)} and ${each(least, bare)}.`;
}

/** All whose advantage is as far from 0 as that of the furthest, or the nearest, as far as it is written out. */
function strongest(valid, advantages, extreme) {
  const size = (index) => plain(Math.abs(advantages[index]), SHOWN);
  const limit = extreme(...valid.map((index) => Math.abs(advantages[index])));
  return valid.filter((index) => size(index) === plain(limit, SHOWN));
}

/** Completions with their advantages, those with the same one together. */
function each(indices, advantages) {
  const by = new Map();
  const texts = column(indices.map((index) => advantages[index]), { digits: SHOWN, sign: true });
  indices.forEach((index, place) => by.set(texts[place], [...by.get(texts[place]) ?? [], index]));
  return joined([...by].map(([text, tied]) => `${named(tied)} (${text})`));
}

function named(indices) {
  const more = indices.length - MOST_NAMED;
  const names = more > 0 ? [...indices.slice(0, MOST_NAMED), `${more} other${more === 1 ? "" : "s"}`] : indices;
  return `completion${indices.length === 1 ? "" : "s"} ${joined(names)}`;
}

function joined(words) {
  return words.length === 1 ? String(words[0]) : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
}

function twoKinds([few, many], rewards, grpo, bare) {
  const [one, other] = [few[0], many[0]];
  const [loud, quiet, plainly, against] = [grpo[one], grpo[other], bare[one], bare[other]].map((value) => withSign(value, SHOWN));
  const divided = `Without the division by the deviation (Dr.GRPO) it would be ${plainly} against ${against}.`;
  const balance = "As in every group, the advantages add up to 0.";
  if (many.length === 1) {
    return `One against one: completion ${one} gets ${loud} under GRPO, completion ${other} ${quiet}. Each pushes equally hard. ${divided}`;
  }
  if (few.length === many.length) {
    return `Half and half: ${few.length} get ${loud}, ${many.length} get ${quiet} under GRPO. Each completion pushes equally hard. ${balance} ${divided}`;
  }
  if (few.length === 1) {
    return `One against ${many.length}: completion ${one} gets ${loud} under GRPO, each of the others ${quiet}. ` +
      `It alone weighs as much as the other ${many.length} together. ${balance} ${divided}`;
  }
  return `The ${few.length} completions with reward ${plain(rewards[one])} get ${loud} each under GRPO, ` +
    `the ${many.length} with reward ${plain(rewards[other])} get ${quiet} each: the rarer a reward is in its group, the harder each ` +
    `completion with it pushes. ${balance} ${divided}`;
}

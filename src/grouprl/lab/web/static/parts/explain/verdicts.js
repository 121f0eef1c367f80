// What the numbers of a group say, in sentences: every number in them is one that the lab gave.
import { number, signed } from "../text.js";

/** Of the lab's `advantages`: sentences about silence, outliers and invalid completions. */
export function verdicts({ rewards, valid: count, algorithms }) {
  const valid = rewards.flatMap((reward, index) => (reward === null ? [] : [index]));
  const { grpo } = algorithms;
  const said = count < rewards.length ? [invalid(rewards, count)] : [];
  const over = count === rewards.length ? `all ${count}` : `the ${count} valid`;
  if (count > 1) said.push(`Over ${over} rewards the mean is ${number(grpo.mean, 4)}, the standard deviation ${number(grpo.deviation, 4)}.`);
  return [...said, grpo.degenerate ? silent(rewards, valid, algorithms) : outlier(rewards, valid, algorithms)];
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
  if (moved === undefined) return `${said} REINFORCE is silent as well, because the rewards are ${number(rewards[valid[0]])}.`;
  const still = signed(reinforce.advantages[moved]);
  return `${said} REINFORCE, which compares with a constant, still gives completion ${moved} an advantage of ${still}.`;
}

function outlier(rewards, valid, { grpo: { advantages: grpo }, dr_grpo: { advantages: plain } }) {
  const different = [...new Set(valid.map((index) => rewards[index]))];
  const kinds = different.map((reward) => valid.filter((index) => rewards[index] === reward));
  if (kinds.length === 2) return twoKinds(kinds.sort((one, other) => one.length - other.length), rewards, grpo, plain);
  const order = [...valid].sort((one, other) => Math.abs(grpo[other]) - Math.abs(grpo[one]));
  const [most, least] = [order[0], order.at(-1)];
  return `Under GRPO completion ${most} counts most (${signed(grpo[most])}), completion ${least} least (${signed(grpo[least])}). ` +
    `Without the division by the deviation (Dr.GRPO) these are ${signed(plain[most])} and ${signed(plain[least])}.`;
}

function twoKinds([few, many], rewards, grpo, plain) {
  const [one, other] = [few[0], many[0]];
  const [loud, quiet] = [signed(grpo[one]), signed(grpo[other])];
  const divided = `Without the division by the deviation (Dr.GRPO) it would be ${signed(plain[one])} against ${signed(plain[other])}.`;
  if (few.length === many.length) {
    return `Half and half: ${few.length} get ${loud}, ${many.length} get ${quiet} under GRPO. The two halves push equally hard. ${divided}`;
  }
  if (few.length === 1) {
    return `One against ${many.length}: completion ${one} gets ${loud} under GRPO, each of the others ${quiet}. ` +
      `The single one decides what this group teaches. ${divided}`;
  }
  return `The ${few.length} completions with reward ${number(rewards[one])} get ${loud} each under GRPO, ` +
    `the ${many.length} with reward ${number(rewards[other])} get ${quiet} each: the rarer a reward is in its group, the harder it pushes. ${divided}`;
}

// The two pipelines, drawn by hand: what flows where, which networks are trained, which are frozen, what is plain arithmetic.
import { s } from "../dom.js";
import { drawing, rect } from "./draw.js";

const LEAST = 326;
const MARGIN = 34; // at both sides, for the arrows that lead back up
const BOX = 60;
const GAP = 48;
const BADGE = 9; // how far a badge hangs below its box
const GUTTER = 7;
let pictures = 0;

/** GRPO: the group is the baseline. */
export function grpoPipeline() {
  const said = "GRPO. The policy, which is trained, writes G completions of one prompt. A verifier or a frozen reward model " +
    "gives each a reward, and the frozen reference its log-probs. From the rewards the group's mean and deviation are " +
    "computed, without a network, and from them one advantage for each completion. Advantages and KL meet in the clipped " +
    "objective, whose gradient updates the policy.";
  return drawing(said, (width) => {
    const at = grid(width, 2);
    const [prompt, policy, judges, group, objective] = rows([30, BOX, BOX, BOX, BOX]);
    return [objective.y + BOX + 14, arrowHead(at),
      down(at, at.all, prompt, policy, []),
      down(at, at.column(0), policy, judges, ["G completions ", i("o"), sub("i")]),
      down(at, at.column(1), policy, judges, ["the same"]),
      down(at, at.column(0), judges, group, ["a reward ", i("r"), sub("i"), " each"]),
      down(at, at.column(1), judges, objective, ["log-probs"], judges),
      down(at, at.column(0), group, objective, [i("A"), sub("i"), " by completion"]),
      back(at, "right", at.all, objective, policy, "update"),
      pill(at.all, prompt, ["prompt ", i("q")]),
      box(at.all, policy, "trained", "Policy", [i("\u03c0"), sub("\u03b8")]),
      box(at.column(0), judges, "frozen", "Verifier or", "reward model"),
      box(at.column(1), judges, "frozen", "Reference", [i("\u03c0"), sub("ref")]),
      box(at.column(0), group, "plain", "Group statistics", [i("\u03bc"), ", ", i("\u03c3")]),
      box(at.all, objective, "plain", "Clipped objective, with the KL term",
        [i("S"), sub("i,t"), " \u2212 ", i("\u03b2"), " ", i("D"), sub("i,t")])];
  }, { class: "pipeline" }, LEAST).element;
}

/** PPO: a critic is the baseline. */
export function ppoPipeline() {
  const said = "PPO. The policy, which is trained, writes a completion of a prompt. A verifier or a frozen reward model gives " +
    "its reward, the frozen reference its log-probs, and the critic, a second network that is trained, a value before each " +
    "token. The reward less the KL becomes a reward for each token. Generalised advantage estimation turns these and the " +
    "values into an advantage and a return for each token. The clipped objective updates the policy, and the value loss " +
    "updates the critic.";
  return drawing(said, (width) => {
    const at = grid(width, 3);
    const [prompt, policy, judges, tokens, gae, losses] = rows([30, BOX, BOX, BOX, BOX, BOX]);
    return [losses.y + BOX + 14, arrowHead(at),
      down(at, at.all, prompt, policy, []),
      down(at, at.column(0), policy, judges, ["completion"]),
      down(at, at.column(1), policy, judges, ["the same"]),
      down(at, at.column(2), policy, judges, ["the same"]),
      down(at, at.column(0), judges, tokens, ["reward ", i("r")]),
      down(at, at.column(1), judges, tokens, ["log-probs"]),
      down(at, at.column(2), judges, gae, ["values"], judges),
      down(at, at.columns(0, 1), tokens, gae, [i("r"), sub("i,t")]),
      down(at, at.columns(0, 1), gae, losses, [i("A"), sub("i,t"), " by token"]),
      down(at, at.column(2), gae, losses, ["returns"]),
      back(at, "left", at.columns(0, 1), losses, policy, "update"),
      back(at, "right", at.column(2), losses, judges, "update"),
      pill(at.all, prompt, ["prompt ", i("q")]),
      box(at.all, policy, "trained", "Policy", [i("\u03c0"), sub("\u03b8")]),
      box(at.column(0), judges, "frozen", "Verifier or", "reward model"),
      box(at.column(1), judges, "frozen", "Reference", [i("\u03c0"), sub("ref")]),
      box(at.column(2), judges, "trained", "Critic", [i("V"), sub("\u03d5")]),
      box(at.columns(0, 1), tokens, "plain", "Rewards by token", ["reward \u2212 ", i("\u03b2"), " KL"]),
      box(at.all, gae, "plain", "Generalised advantage estimation", [i("\u03b3"), ", ", i("\u03bb")]),
      box(at.columns(0, 1), losses, "plain", "Clipped objective", [i("S"), sub("i,t")]),
      box(at.column(2), losses, "plain", "Value loss", [i("J"), sub("V")])];
  }, { class: "pipeline" }, LEAST).element;
}

function grid(width, count) {
  const inner = width - 2 * MARGIN;
  const size = (inner - (count - 1) * GUTTER) / count;
  const columns = (first, last) => {
    const between = last - first;
    return { x: MARGIN + first * (size + GUTTER), width: (between + 1) * size + between * GUTTER };
  };
  const column = (index) => columns(index, index);
  return { width, all: columns(0, count - 1), column, columns, head: `arrow-${(pictures += 1)}` };
}

function rows(heights) {
  let y = 4;
  return heights.map((height) => {
    const row = { y, height };
    y += height + GAP;
    return row;
  });
}

function arrowHead({ head }) {
  const size = { viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8 };
  return s("defs", {}, s("marker", { id: head, ...size, markerUnits: "userSpaceOnUse", orient: "auto" },
    s("path", { d: "M0 0 L8 4 L0 8 Z", class: "arrow-head" })));
}

function i(letter) {
  return s("tspan", { class: "letter" }, letter);
}

/** Below the line, by the size of its own letters; what follows comes back up by itself. */
function sub(letters) {
  return s("tspan", { class: "below", "baseline-shift": "sub" }, letters);
}

function words(x, y, parts, name, anchor = "middle") {
  return s("text", { x: x.toFixed(1), y: y.toFixed(1), class: name, "text-anchor": anchor }, parts);
}

function pill(span, row, parts) {
  const [middle, width] = [span.x + span.width / 2, 110];
  const frame = rect(middle - width / 2, row.y, width, row.height, "pill", { rx: row.height / 2 });
  return [frame, words(middle, row.y + 20, parts, "name")];
}

function box(span, row, kind, name, below) {
  const middle = span.x + span.width / 2;
  const said = { trained: "trained", frozen: "frozen", plain: null }[kind];
  const bottom = row.y + row.height;
  const badge = said ? [rect(middle - 29, bottom - BADGE, 58, 2 * BADGE, `badge ${kind}`, { rx: BADGE }),
    words(middle, bottom + 4, said, `badge-name ${kind}`)] : null;
  return [rect(span.x, row.y, span.width, row.height, `box ${kind}`, { rx: 8 }),
    words(middle, row.y + 21, name, "name"), words(middle, row.y + 39, below, "below-name"), badge];
}

/** An arrow from the bottom of one row to the top of another, with what it carries beside it. */
function down({ head }, span, from, to, parts) {
  const middle = span.x + span.width / 2;
  const [start, end] = [from.y + from.height, to.y];
  const carries = parts.length ? words(middle + 6, start + 33, parts, "carried", "start") : null;
  const at = middle.toFixed(1);
  return [s("line", { x1: at, x2: at, y1: start, y2: end - 1, class: "arrow", "marker-end": `url(#${head})` }), carries];
}

/** An arrow around the side, from a loss back up to the network that it trains. */
function back({ head, width }, side, span, from, to, name) {
  const left = side === "left";
  const [out, edge] = left ? [8, span.x] : [width - 8, span.x + span.width];
  const [start, end] = [from.y + from.height / 2, to.y + to.height / 2];
  const across = left ? out + 12 : out - 12;
  return [s("path", { d: `M${edge} ${start} H${out} V${end} H${edge}`, class: "arrow", "marker-end": `url(#${head})` }),
    s("g", { transform: `translate(${across} ${(start + end) / 2}) rotate(${left ? -90 : 90})` }, words(0, 4, name, "carried"))];
}

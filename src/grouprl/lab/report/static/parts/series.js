// The metrics of a run, step by step, as columns that grow.

const AXES = ["step", "tokens", "seconds"];

export class Series {
  step = [];
  tokens = [];
  seconds = [];
  columns = new Map();

  /** Takes what /series answers in the place of everything. */
  fill(answer) {
    for (const axis of AXES) this[axis] = answer[axis].slice();
    this.columns = new Map(Object.entries(answer.columns).map(([name, values]) => [name, values.map(finite)]));
  }

  /** Adds a row of metrics. A resumed run makes steps again: the first of them drops what was known from there on. */
  append(row) {
    const known = this.step.findIndex((step) => step >= row.step), before = known < 0 ? this.length : known;
    for (const column of [...AXES.map((axis) => this[axis]), ...this.columns.values()]) column.length = before;
    for (const axis of AXES) this[axis].push(row[axis]);
    for (const name of Object.keys(row)) {
      if (!AXES.includes(name) && !this.columns.has(name)) this.columns.set(name, Array(before).fill(null));
    }
    for (const [name, values] of this.columns) values.push(finite(row[name]));
  }

  get length() { return this.step.length; }

  /** The metrics that have a number in some step. */
  names() {
    return [...this.columns].filter(([, values]) => values.some((value) => value !== null)).map(([name]) => name);
  }

  column(name) { return this.columns.get(name) ?? Array(this.length).fill(null); }

  /** The last number of a metric; null without one. */
  last(name) { return this.columns.get(name)?.findLast((value) => value !== null) ?? null; }

  /** Where a step lies on an axis: before the first at 0; undefined for a step that was not recorded. */
  place(step, axis) {
    if (axis === "step") return step;
    return step === 0 ? 0 : this[axis][this.step.indexOf(step)];
  }
}

function finite(value) {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

/** Measures of the evaluations along an axis, each with its 95 % interval where there is one. */
export function heldOut(series, evaluations, measures, axis) {
  const measured = (row) => measures.some((name) => finite(row[name]) !== null);
  const rows = evaluations.filter((row) => series.place(row.step, axis) !== undefined && measured(row));
  const bound = (side) => measures.map((name) => rows.map((row) => finite(row[intervalName(name)]?.[side])));
  return {
    x: rows.map((row) => series.place(row.step, axis)),
    steps: rows.map((row) => row.step),
    columns: measures.map((name) => rows.map((row) => finite(row[name]))),
    low: bound(0),
    high: bound(1),
  };
}

/** Whether a run is measured by its mean reward: as its summary says, or by what its evaluations hold. */
export const byReward = ({ summary }, evaluations) => (summary?.measure ? summary.measure === "reward"
  : evaluations.some((row) => "reward" in row) && !evaluations.some((row) => "greedy_accuracy" in row));

export const intervalName = (measure) => (measure.startsWith("greedy") ? "greedy_interval" : `${measure}_interval`);

/** The centered moving mean over about a tenth of the values, over what there is of it at the ends; gaps stay gaps. */
export function smoothed(values) {
  const half = Math.max(1, Math.floor(values.length / 10)) >> 1;
  const sums = [0], counts = [0];
  for (const value of values) {
    sums.push(sums.at(-1) + (value ?? 0));
    counts.push(counts.at(-1) + (value === null ? 0 : 1));
  }
  return values.map((value, at) => {
    const from = Math.max(0, at - half), to = Math.min(values.length, at + half + 1);
    return value === null ? null : (sums[to] - sums[from]) / (counts[to] - counts[from]);
  });
}

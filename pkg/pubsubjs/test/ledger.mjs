// Compares what a subscriber got with what was published.

const parts = (position) => {
  const [, epoch, offset] = /@(\w+):(\d+)$/.exec(position);
  return { epoch, offset: Number(offset) };
};

/**
 * Judges the items of one topic that a subscriber got. published are the positions of messages, of earlier epochs first. The subscriber began before
 * the first. Returns counts: delivered, gaps, missed (announced by a gap), and the faults: lost, repeated, disordered. A message whose publisher
 * does not know its position may be delivered, too.
 */
export function judge(published, items) {
  const epochs = [...new Set(published.map((p) => parts(p).epoch))];
  const log = published.map(parts).sort((a, b) => epochs.indexOf(a.epoch) - epochs.indexOf(b.epoch) || a.offset - b.offset);
  const result = { delivered: 0, gaps: 0, missed: 0, lost: 0, repeated: 0, disordered: 0 };
  const seen = new Set();
  let last = { epoch: "", offset: -1 }; // position of the item before
  let at = -1; // index in log of the last message that was delivered, announced as missed, or lost
  for (const item of items) {
    const position = parts(item.position);
    const passed = Math.max(at, lastUpTo(log, position));
    const late = position.epoch === last.epoch ? position.offset <= last.offset : epochs.indexOf(position.epoch) < epochs.indexOf(last.epoch);
    if (item.gap) {
      result.gaps++;
      result.missed += passed - at;
      at = passed;
      if (late && position.offset !== last.offset) result.disordered++;
    } else {
      result.delivered++;
      if (seen.has(item.position)) result.repeated++;
      else if (late) result.disordered++;
      else result.lost += passed - at - (known(log[passed], position) ? 1 : 0);
      seen.add(item.position);
      at = passed;
    }
    last = position;
  }
  result.lost += log.length - 1 - at;
  return result;
}

const known = (entry, { epoch, offset }) => entry?.epoch === epoch && entry.offset === offset;

// Returns the index of the last entry at or before a position, in order of epochs.
function lastUpTo(log, { epoch, offset }) {
  const index = log.findLastIndex((p) => p.epoch === epoch && p.offset <= offset);
  return index >= 0 ? index : log.findIndex((p) => p.epoch === epoch) - 1;
}

/** Returns what is wrong with the counts of judge, or "". */
export function faults({ lost, repeated, disordered }) {
  return Object.entries({ lost, repeated, disordered }).filter(([, n]) => n).map(([name, n]) => `${n} ${name}`).join(", ");
}

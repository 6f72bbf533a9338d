// Follows the event streams named on the command line, as a page does, and prints what
// comes of each: a line of JSON an event. The first argument is the package that does it.
// The script ends with its input.
import * as eventsource from "eventsource";
import polyfill from "event-source-polyfill";

const { [process.argv[2]]: EventSource } = { "eventsource": eventsource.EventSource, "event-source-polyfill": polyfill.EventSourcePolyfill };

const sources = process.argv.slice(3).map((url, source) => {
  const events = new EventSource(url);
  const print = (e) => console.log(JSON.stringify({ source, type: e.type, id: e.lastEventId, data: e.data }));
  for (const type of ["hello", "message", "gap", "end"]) events.addEventListener(type, print);
  events.onerror = (e) => console.log(JSON.stringify({ source, type: "error", status: e.code ?? e.status ?? 0, closed: events.readyState === EventSource.CLOSED }));
  return events;
});

process.stdin.resume();
process.stdin.on("end", () => {
  sources.forEach((events) => events.close());
  process.exit(); // event-source-polyfill keeps its timers
});

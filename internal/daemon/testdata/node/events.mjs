// Follows the event streams named on the command line, as a page does, and prints what
// comes of each: a line of JSON an event. It ends with its input.
import { EventSource } from "eventsource";

const sources = process.argv.slice(2).map((url, source) => {
  const events = new EventSource(url);
  const print = (e) => console.log(JSON.stringify({ source, type: e.type, id: e.lastEventId, data: e.data }));
  for (const type of ["hello", "message", "gap", "end"]) events.addEventListener(type, print);
  events.onerror = (e) => console.log(JSON.stringify({ source, type: "error", status: e.code ?? 0, closed: events.readyState === EventSource.CLOSED }));
  return events;
});

process.stdin.resume();
process.stdin.on("end", () => sources.forEach((events) => events.close()));

// Follows topics by WebSocket and comes back from the positions that it has, as the
// protocol says. It prints a line of JSON for each frame, and for each connection that
// opens or closes. On its first connection it says the commands named on the command
// line behind the address. It ends with its input.
import WebSocket from "ws";

const [address, topic, ...commands] = process.argv.slice(2);
const at = new Map([[topic, topic]]); // where each topic goes on
const print = (line) => console.log(JSON.stringify(line));
const learn = (position) => at.set(position.slice(0, position.indexOf("@")), position);
let socket, over = false, first = true;

function hear(text) {
  const frame = JSON.parse(text);
  const told = frame.hello ?? frame.reply ?? {};
  for (const position of told.positions ?? []) learn(position);
  if (frame.position) learn(frame.position);
  if (frame.gap) learn(frame.gap.position);
  if (frame.hello && first) for (const command of commands) socket.send(command);
  first &&= !frame.hello;
  print({ type: "frame", frame });
}

function connect() {
  const query = new URLSearchParams([...at.values()].map((start) => ["topic", start]));
  socket = new WebSocket(`ws://${address}/v1/ws?${query}`, { perMessageDeflate: { threshold: 0 } });
  socket.on("open", () => print({ type: "open", extensions: socket.extensions }));
  socket.on("message", (data, isBinary) => (isBinary ? print({ type: "binary" }) : hear(data.toString())));
  socket.on("error", () => {});
  socket.on("close", (code) => {
    print({ type: "close", code });
    if (!over) setTimeout(connect, 50);
  });
}

connect();
process.stdin.resume();
process.stdin.on("end", () => {
  over = true;
  socket.close();
});

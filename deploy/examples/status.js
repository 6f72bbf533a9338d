// What the pages share. The elements with the ids state and notice tell the user about the connection.
const words = { idle: "Not connected", connecting: "Connecting", open: "Live", closed: "Closed" };
const element = (id) => document.getElementById(id);
let hide;

/** Shows the state of the client, with the time until the next attempt. */
export function showState(client) {
  let timer;
  client.onState(({ state, transport, waitMs, reason }) => {
    const until = Date.now() + waitMs;
    const show = () => {
      element("state").className = state;
      element("state").title = transport ?? reason ?? "";
      element("state").textContent = words[state] ?? `Offline, next attempt in ${Math.max(1, Math.ceil((until - Date.now()) / 1000))} s`;
    };
    clearInterval(timer);
    if (state === "waiting") timer = setInterval(show, 250);
    show();
  });
}

/** Tells the user something for ten seconds. */
export function tell(text) {
  element("notice").textContent = text;
  element("notice").hidden = false;
  clearTimeout(hide);
  hide = setTimeout(() => (element("notice").hidden = true), 10_000);
}

/** Fetches JSON. Throws the detail of a refusal. */
export async function ask(url, options) {
  const answer = await fetch(url, options);
  const found = await answer.json();
  if (answer.ok) return found;
  throw new Error(found.detail);
}

// Requests to the server that this page came from. A token is kept for this tab alone, and leaves the address at once.

const KEY = "runnel-token";
const answers = new Map(); // by address: the tag and the content of the newest answer

const given = /^#token=([\w-]+)$/.exec(location.hash);
if (given) {
  sessionStorage.setItem(KEY, given[1]);
  history.replaceState(null, "", location.pathname);
}

export function hasToken() {
  return sessionStorage.getItem(KEY) !== null;
}

function headers(more) {
  const token = sessionStorage.getItem(KEY);
  return token === null ? more : { ...more, Authorization: `Bearer ${token}` };
}

async function checked(response) {
  if (response.ok) return response;
  const words = await response.text();
  throw new Error(words.slice(0, 300) || `the server answers ${response.status}`);
}

export async function get(path, values) {
  const address = `${path}?${new URLSearchParams(values)}`;
  const known = answers.get(address);
  const response = await fetch(address, { headers: headers(known ? { "If-None-Match": known.tag } : {}), cache: "no-store" });
  if (response.status === 304) return known.content;
  await checked(response);
  const content = await response.json();
  if (answers.size > 20) answers.delete(answers.keys().next().value);
  answers.set(address, { tag: response.headers.get("ETag"), content });
  return content;
}

export async function blob(path, values) {
  const response = await checked(await fetch(`${path}?${new URLSearchParams(values)}`, { headers: headers({}) }));
  return response.blob();
}

export async function ask(id, what) {
  await checked(
    await fetch("/api/request", {
      method: "POST",
      headers: headers({ "Content-Type": "application/json" }),
      body: JSON.stringify({ id, what }),
    }),
  );
}

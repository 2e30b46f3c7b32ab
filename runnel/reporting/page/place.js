// What the address says after `#`: the page, the runs that it shows, and what was chosen there, so that a reload or a
// copied address shows the same.

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return ""; // what names no run
  }
}

export function place() {
  const [path, ...query] = location.hash.slice(1).split("?");
  const [name, ...ids] = path.split("/");
  return { name, ids: ids.map(decoded), values: new URLSearchParams(query.join("?")) };
}

// Writes what was chosen into the address; it is no new entry of the browser's history. `pairs`: names and values.
export function remember(pairs) {
  const [path] = location.hash.split("?");
  const query = new URLSearchParams(pairs).toString();
  history.replaceState(null, "", query ? `${path}?${query}` : path || location.pathname);
}

import { h, svg } from "./elements.js";

const DRAWN = {
  rect: ["x", "y", "width", "height", "rx", "fill", "stroke"],
  text: ["x", "y", "text-anchor", "font-size", "font-weight", "fill"],
  path: ["d", "fill", "stroke", "stroke-width"],
};
const COLOUR = /^#[0-9a-f]{6}$/;

// The plan as `runnel plan --format svg` draws it. Colours are classes too, so that a dark page can change them.
export function planPicture(picture) {
  const { width, height, title, shapes } = picture;
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "plan", role: "img", "aria-label": title });
  const head = svg("path", { d: "M0,0.5 L8,4 L0,7.5 z", class: "fill-444444", fill: "#444444" });
  const marker = { id: "head", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto" };
  drawing.append(svg("defs", {}, svg("marker", marker, head)));
  for (const [tag, attributes, words] of shapes) {
    if (!Object.hasOwn(DRAWN, tag)) continue;
    const kept = Object.fromEntries(DRAWN[tag].filter((name) => Object.hasOwn(attributes, name)).map((name) => [name, attributes[name]]));
    const colours = ["fill", "stroke"].filter((name) => COLOUR.test(kept[name])).map((name) => `${name}-${kept[name].slice(1)}`);
    if (attributes["marker-end"]) kept["marker-end"] = "url(#head)";
    drawing.append(svg(tag, { ...kept, class: colours.join(" ") }, words));
  }
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "the plan" }, drawing);
}

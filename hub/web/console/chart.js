// A line of the last two minutes, drawn as SVG.

const svg = (name, attributes) => {
  const e = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  return e;
};

const points = 120, width = 240, height = 56;

/** chart shows the values that are added to it, one a second, oldest first. */
export function chart(label) {
  const area = svg("polygon", { class: "area" }), line = svg("polyline", { class: "line" });
  const element = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label });
  element.append(svg("line", { class: "base", x1: 0, x2: width, y1: height - 1, y2: height - 1 }), area, line);
  return {
    element,
    draw(values) {
      const top = Math.max(...values, 0) || 1;
      const xy = values.map((v, i) => {
        const x = width - ((values.length - 1 - i) * width) / (points - 1);
        return [x.toFixed(1), (height - 2 - (Math.max(v, 0) / top) * (height - 8)).toFixed(1)];
      });
      if (xy.length === 0) return;
      line.setAttribute("points", xy.map((p) => p.join(",")).join(" "));
      area.setAttribute("points", [[xy[0][0], height], ...xy, [xy.at(-1)[0], height]].map((p) => p.join(",")).join(" "));
    },
  };
}

/** series keeps the last two minutes of values. */
export function series() {
  const values = [];
  return {
    values,
    add(v) {
      values.push(v);
      if (values.length > points) values.shift();
    },
  };
}

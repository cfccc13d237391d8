"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const percent = (p, digits = 1) => `${(100 * p).toFixed(p === 0 || p === 1 ? 0 : digits)}\u00a0%`;
const choice = document.getElementById("way");
const show = () => {
  document.querySelectorAll(".way").forEach((section, i) => { section.hidden = i !== Number(choice.value); });
};

// The last point at or above a confidence: what is decided there.
const decided = (points, confidence) => {
  let low = 0, high = points.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] >= confidence) low = middle + 1; else high = middle;
  }
  return low ? points[low - 1] : null;
};

document.querySelectorAll(".way").forEach((section, i) => {
  const slider = section.querySelector("input[type=range]");
  if (!slider) return;
  const shown = section.querySelector("output"), mark = section.querySelector(".mark");
  const move = () => {
    const confidence = Number(slider.value), found = decided(data.points[i], confidence);
    const text = found
      ? `${found[1].toLocaleString("en")} of ${data.n.toLocaleString("en")} rows are decided, ${percent(found[1] / data.n)}; `
        + `${percent(found[2])} of these are right.`
      : "No row is decided.";
    shown.textContent = `From a confidence of ${percent(confidence)} on: ${text}`;
    slider.setAttribute("aria-valuetext", `${percent(confidence)}: ${text}`);
    mark.toggleAttribute("hidden", !found);
    mark.style.display = found ? "" : "none";
    if (found) {
      mark.setAttribute("cx", data.left + data.size * found[1] / data.n);
      mark.setAttribute("cy", 8 + data.size * (1 - found[2]));
    }
  };
  slider.addEventListener("input", move);
  move();
});
choice.addEventListener("change", show);
show();

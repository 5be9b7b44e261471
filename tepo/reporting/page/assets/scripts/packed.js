"use strict";
// What the other scripts use: elements, what the page holds compressed (unpacked once), and the colours of tokens.
const make = (name, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
};

const unpack = (() => {
  const known = new Map();
  return (id) => {
    if (!known.has(id)) {
      const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
      known.set(id, new Response(stream).json());
    }
    return known.get(id);
  };
})();

// How values of tokens are coloured, the same wherever tokens are shown.
const tokenColours = {
  number(value) {
    if (value === null || value === undefined) return "–";
    const small = value !== 0 && Math.abs(value) < 1e-3;
    return (small ? value.toExponential(1) : String(Number(value.toPrecision(3)))).replaceAll("-", "−");
  },
  tint: (colour, share) => `rgba(var(--${colour}), ${(0.75 * Math.min(1, Math.abs(share))).toFixed(3)})`,
  scaled: (kind, value) => (kind === "log" ? Math.log(Math.max(value, 1e-9)) : value),
  // The end of a scale: the 98th percentile of the sizes, so that one outlier does not bleach the rest.
  end(kind, responses, name) {
    const sizes = responses.flatMap((one) => (one.values[name] ?? []).filter((v) => v !== null).map((v) => Math.abs(this.scaled(kind, v))));
    sizes.sort((a, b) => a - b);
    const exact = sizes.length ? sizes[Math.min(sizes.length - 1, Math.floor(0.98 * sizes.length))] : 0;
    return exact || sizes[sizes.length - 1] || 1;
  },
  colour(kind, end, value) {
    if (value === null || value === undefined) return "transparent";
    if (kind === "mask") return value ? this.tint("cold", 0.7) : "transparent";
    const share = this.scaled(kind, value) / end;
    return kind === "sequential" ? this.tint("warm", share) : this.tint(share > 0 ? "hot" : "cold", share);
  },
  visible: (text) => text.replace(/\n/g, "↵\n").replace(/\t/g, "→\t") || "∅",
};

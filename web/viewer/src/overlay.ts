// The figures over the picture.

import type { Figures } from "./messages";

/** The seconds of which the overlay shows stalls. */
const SECONDS = 60;

/** The longest time between frames that is not a stall, in milliseconds, as in base/qoe. */
const STALL_MS = 200;

/** The heights of a bar: no stall, and stalls up to twice as long each. */
const BARS = "▁▂▃▄▅▆▇█";

export class Overlay {
    readonly element = document.createElement("pre");
    /** The longest time between frames of each second. */
    #gaps: number[] = [];

    constructor() {
        this.element.hidden = true;
    }

    /** Shows the figures, and lines on other things. */
    show(figures: Figures, lines: string[]): void {
        this.#gaps = [...this.#gaps, figures.gapMs].slice(-SECONDS);
        const { frames, decodeMs, drawMs, delayMs, bits, passedOver, damaged, refused, transport, renderer } = figures;
        this.element.textContent = [
            `${frames} frames/s, ${(bits / 1e6).toFixed(1)} Mbit/s`,
            `${delayMs.toFixed(0)} ms from arrival to picture, ${decodeMs.toFixed(1)} decoding, ${drawMs.toFixed(1)} drawing`,
            `${passedOver} frames passed over, ${damaged} damaged, ${refused} packets refused`,
            `stalls ${this.#gaps.map(bar).join("")}, longest ${Math.max(...this.#gaps).toFixed(0)} ms`,
            `${renderer === "webgl" ? "WebGL" : "WASM"} on ${figures.device}; ${transport || "not connected"}`,
            ...lines,
        ].join("\n");
    }
}

function bar(gapMs: number): string {
    const doublings = Math.ceil(Math.log2(Math.max(gapMs, 1) / STALL_MS));
    return BARS.charAt(Math.min(Math.max(doublings, 0), BARS.length - 1));
}

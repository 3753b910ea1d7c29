// The element <hawser-view src="broadcasts.json">: shows a broadcast, around which the viewer walks with mouse, finger or
// keyboard. It begins when its property `secret` is set.

import type { Figures, FromWorker, ToWorker } from "./messages";

/** The turn for each pixel that is dragged, and for each key, in radians. */
const TURN = 0.008;
const KEY_TURN = 0.1;

/** The factor of the distance for each key, and the exponent of it for each step of a wheel. */
const ZOOM = 1.1;
const WHEEL = 0.001;

/** The most pixels that are drawn, whatever the screen has. */
const MAX_PIXELS = 640 * 480;

const STYLE = `
:host { display: block; position: relative; overflow: hidden; touch-action: none; }
:host([hidden]) { display: none; }
:host(:focus-visible) { outline: 2px solid #7ab8ff; outline-offset: -2px; }
canvas { width: 100%; height: 100%; display: block; cursor: grab; }
canvas:active { cursor: grabbing; }
p { position: absolute; inset: auto 0 1rem; margin: 0 auto; width: fit-content; max-width: 90%; padding: 0.3rem 0.8rem;
    background: #000a; border-radius: 0.3rem; }
p:empty { display: none; }
pre { position: absolute; inset: 0.5rem auto auto 0.5rem; margin: 0; padding: 0.4rem 0.6rem; background: #000a;
    border-radius: 0.3rem; font-size: 0.8rem; }
`;

export class HawserView extends HTMLElement {
    /** The name of the broadcast; empty: the first of the list. */
    name = "";
    /** What was shown in the newest second. */
    figures: Figures | undefined;
    #worker: Worker | undefined;
    #canvas = document.createElement("canvas");
    #state = document.createElement("p");
    #overlay = document.createElement("pre");

    constructor() {
        super();
        const sheet = new CSSStyleSheet();
        sheet.replaceSync(STYLE);
        const root = this.attachShadow({ mode: "open" });
        root.adoptedStyleSheets = [sheet];
        this.#overlay.hidden = true;
        this.#state.setAttribute("role", "status");
        root.append(this.#canvas, this.#state, this.#overlay);
        this.#canvas.addEventListener("pointerdown", (event) => this.#canvas.setPointerCapture(event.pointerId));
        this.#canvas.addEventListener("pointermove", (event) => this.#drag(event));
        this.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
        this.addEventListener("keydown", (event) => this.#key(event));
    }

    connectedCallback(): void {
        this.tabIndex = 0;
        this.setAttribute("role", "application");
        this.setAttribute(
            "aria-label",
            "Live picture in three dimensions. Arrows walk around, plus and minus change the distance, 0 goes back, I shows figures.",
        );
    }

    disconnectedCallback(): void {
        this.#worker?.terminate();
    }

    /** The secret of the broadcast, 64 hexadecimal digits. Setting it begins to watch, once. */
    set secret(secret: string) {
        if (this.#worker) return;
        this.#worker = new Worker(new URL("./worker.ts", import.meta.url), { type: "module", name: "worker" });
        this.#worker.addEventListener("message", ({ data }: MessageEvent<FromWorker>) => this.#take(data));
        this.#worker.addEventListener("error", () => {
            this.#state.textContent = "The viewer has failed. Load the page again.";
        });
        // The worker says more as soon as it knows more.
        this.#state.textContent = "Connecting.";
        const canvas = this.#canvas.transferControlToOffscreen();
        const src = new URL(this.getAttribute("src") ?? "", document.baseURI).href;
        this.#send({ kind: "start", start: { canvas, src, name: this.name, secret } }, [canvas]);
        new ResizeObserver(() => this.#send({ kind: "size", ...this.#size() })).observe(this);
    }

    /** Returns the size of pictures: that of the element, or a part of it. */
    #size(): { width: number; height: number } {
        const pixels = this.clientWidth * this.clientHeight;
        const scale = Math.min(devicePixelRatio, Math.sqrt(MAX_PIXELS / Math.max(pixels, 1)));
        const side = (length: number): number => Math.max(Math.round(length * scale), 1);
        return { width: side(this.clientWidth), height: side(this.clientHeight) };
    }

    #send(message: ToWorker, transfer: Transferable[] = []): void {
        this.#worker?.postMessage(message, transfer);
    }

    #take(message: FromWorker): void {
        if (message.kind === "state") {
            this.#state.textContent = message.text;
            return;
        }
        this.figures = message.figures;
        const { frames, decodeMs, drawMs, delayMs, passedOver, damaged, refused, transport } = message.figures;
        this.#overlay.textContent = [
            `${frames} frames/s`,
            `${delayMs.toFixed(0)} ms from arrival to picture, ${decodeMs.toFixed(1)} decoding, ${drawMs.toFixed(1)} drawing`,
            `${passedOver} frames passed over, ${damaged} damaged, ${refused} packets refused`,
            transport,
        ].join("\n");
    }

    #drag(event: PointerEvent): void {
        if (!this.#canvas.hasPointerCapture(event.pointerId)) return;
        this.#turn(-TURN * event.movementX, -TURN * event.movementY, 1);
    }

    #wheel(event: WheelEvent): void {
        event.preventDefault();
        this.#turn(0, 0, Math.exp(WHEEL * event.deltaY));
    }

    #key(event: KeyboardEvent): void {
        // Those are the browser's own.
        if (event.ctrlKey || event.altKey || event.metaKey) return;
        const actions: Record<string, () => void> = {
            ArrowLeft: () => this.#turn(-KEY_TURN, 0, 1),
            ArrowRight: () => this.#turn(KEY_TURN, 0, 1),
            ArrowUp: () => this.#turn(0, -KEY_TURN, 1),
            ArrowDown: () => this.#turn(0, KEY_TURN, 1),
            "+": () => this.#turn(0, 0, 1 / ZOOM),
            "-": () => this.#turn(0, 0, ZOOM),
            "0": () => this.#send({ kind: "reset" }),
            i: () => {
                this.#overlay.hidden = !this.#overlay.hidden;
            },
        };
        const action = actions[event.key];
        if (!action) return;
        event.preventDefault();
        action();
    }

    #turn(yaw: number, pitch: number, distance: number): void {
        this.#send({ kind: "turn", yaw, pitch, distance });
    }
}

// The element <hawser-view src="broadcasts.json">: shows a broadcast, around which the viewer walks with mouse, fingers or
// keyboard. It begins when its property `secret` is set. `renderer="webgl"` or `renderer="wasm"` chooses how it draws.

import { follow, type Motion } from "./gestures";
import type { Choice, Figures, FromWorker, ToWorker } from "./messages";
import { Overlay } from "./overlay";
import { Sound } from "./sound";

/** The turn, the step as a share of the picture's width and the factor of the distance for each key. */
const KEY_TURN = 0.1;
const KEY_PAN = 0.04;
const KEY_DOLLY = 1.1;

const STYLE = `
:host { display: block; position: relative; overflow: hidden; background: #202020; }
:host([hidden]) { display: none; }
#stage { width: 100%; height: 100%; touch-action: none; cursor: grab; }
#stage:active { cursor: grabbing; }
:focus-visible { outline: 2px solid #7ab8ff; outline-offset: -2px; }
canvas { position: absolute; width: 100%; height: 100%; display: block; }
[role=status] { position: absolute; inset: auto 0 4rem; margin: 0 auto; width: fit-content; max-width: 90%;
    padding: 0.3rem 0.8rem; background: #000a; border-radius: 0.3rem; pointer-events: none; }
[role=status]:empty { display: none; }
pre { position: absolute; inset: 0.5rem auto auto 0.5rem; margin: 0; padding: 0.4rem 0.6rem; background: #000a;
    border-radius: 0.3rem; font-size: 0.8rem; pointer-events: none; }
[role=group] { position: absolute; inset: auto 0 0; padding: 0.5rem; display: flex; flex-wrap: wrap; gap: 0.4rem;
    justify-content: center; pointer-events: none; }
button { font: inherit; font-size: 0.85rem; color: #eee; background: #000a; border: 1px solid #fff4; border-radius: 0.3rem;
    padding: 0.2rem 0.7rem; cursor: pointer; pointer-events: auto; }
button[hidden] { display: none; }
button:hover { background: #333; }
button[aria-pressed=true] { background: #eee; color: #111; }
`;

const LABEL = "Live picture in three dimensions";
const KEYS =
    "Arrows walk around, with Shift they pan. Plus and minus change the distance. Keys of buttons: P, 0, S, I, F and M.";

export class HawserView extends HTMLElement {
    static readonly observedAttributes = ["renderer"];
    /** The name of the broadcast; empty: the first of the list. */
    name = "";
    /** The figures of the newest second. */
    figures: Figures | undefined;
    #worker: Worker | undefined;
    #stage = document.createElement("div");
    #state = document.createElement("p");
    #overlay = new Overlay();
    #actions = new Map<string, () => void>();
    #isPaused = false;
    /** The sound, which is off at first: browsers play none before one has touched the page. */
    readonly sound = new Sound((on) => this.#send({ kind: "listen", on }));

    constructor() {
        super();
        const sheet = new CSSStyleSheet();
        sheet.replaceSync(STYLE);
        const root = this.attachShadow({ mode: "open", delegatesFocus: true });
        root.adoptedStyleSheets = [sheet];
        this.#stage.id = "stage";
        this.#stage.tabIndex = 0;
        this.#stage.setAttribute("role", "application");
        this.#stage.setAttribute("aria-label", LABEL);
        this.#stage.setAttribute("aria-description", KEYS);
        this.#state.setAttribute("role", "status");
        root.append(this.#stage, this.#state, this.#overlay.element, this.#controls());
        follow(this.#stage, this.#motion);
        this.addEventListener("keydown", (event) => this.#key(event));
    }

    disconnectedCallback(): void {
        this.#worker?.terminate();
        this.sound.end();
    }

    attributeChangedCallback(): void {
        if (this.#worker) this.#draw(this.#choice);
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
        const src = new URL(this.getAttribute("src") ?? "", document.baseURI).href;
        this.#send({ kind: "start", start: { src, name: this.name, secret } });
        this.#draw(this.#choice);
        new ResizeObserver(() => this.#sendSize()).observe(this);
    }

    get #choice(): Choice {
        const name = this.getAttribute("renderer");
        return name === "webgl" || name === "wasm" ? name : "auto";
    }

    /** Has the worker draw on a canvas of its own for each renderer, as a canvas has one kind of context for ever. */
    #draw(renderer: Choice): void {
        const canvas = document.createElement("canvas");
        this.#stage.replaceChildren(canvas);
        const offscreen = canvas.transferControlToOffscreen();
        this.#send({ kind: "canvas", canvas: offscreen, renderer }, [offscreen]);
    }

    #sendSize(): void {
        const side = (length: number): number => Math.max(Math.round(length * devicePixelRatio), 1);
        this.#send({ kind: "size", width: side(this.clientWidth), height: side(this.clientHeight) });
    }

    #send(message: ToWorker, transfer: Transferable[] = []): void {
        this.#worker?.postMessage(message, transfer);
    }

    #take(message: FromWorker): void {
        if (this.sound.take(message)) return;
        if (message.kind === "state") this.#state.textContent = message.text;
        // A context that was taken away may be taken away again.
        if (message.kind === "lost") this.#draw("wasm");
        if (message.kind === "figures") {
            this.figures = message.figures;
            this.#overlay.show(message.figures, this.sound.lines);
        }
    }

    #motion: Motion = {
        turn: (yaw, pitch) => this.#send({ kind: "turn", yaw, pitch }),
        pan: (right, up) => this.#send({ kind: "pan", right, up }),
        dolly: (factor) => this.#send({ kind: "dolly", factor }),
    };

    /** Returns the buttons, and gives their keys the same actions. */
    #controls(): HTMLElement {
        const group = document.createElement("div");
        group.setAttribute("role", "group");
        group.setAttribute("aria-label", "Controls");
        const add = (label: string, key: string, act: (button: HTMLButtonElement) => void): void => {
            const button = document.createElement("button");
            button.type = "button";
            button.textContent = label;
            button.title = `Key: ${key.toUpperCase()}`;
            button.setAttribute("aria-keyshortcuts", key);
            button.addEventListener("click", () => act(button));
            this.#actions.set(key, () => act(button));
            group.append(button);
        };
        add("Pause", "p", (button) => {
            this.#isPaused = press(button);
            this.#send({ kind: "pause", isPaused: this.#isPaused });
        });
        add("Reset", "0", () => this.#send({ kind: "reset" }));
        add("Snapshot", "s", () => this.#snapshot());
        add("Figures", "i", (button) => {
            this.#overlay.element.hidden = !press(button);
        });
        if (document.fullscreenEnabled) {
            add("Full screen", "f", () =>
                document.fullscreenElement ? document.exitFullscreen() : this.requestFullscreen(),
            );
        }
        this.#actions.set("m", () => this.sound.toggle());
        group.append(this.sound.button);
        return group;
    }

    /** Saves the picture that is shown as a file. */
    async #snapshot(): Promise<void> {
        const shown = this.#stage.querySelector("canvas") as HTMLCanvasElement;
        const copy = new OffscreenCanvas(shown.width, shown.height);
        copy.getContext("2d")?.drawImage(shown, 0, 0);
        const link = document.createElement("a");
        link.href = URL.createObjectURL(await copy.convertToBlob());
        link.download = `hawser-${new Date().toISOString().replace(/[:.]/g, "-")}.png`;
        link.click();
        URL.revokeObjectURL(link.href);
    }

    #key(event: KeyboardEvent): void {
        // Those are the browser's own.
        if (event.ctrlKey || event.altKey || event.metaKey) return;
        const walk = (right: number, up: number) => (): void =>
            event.shiftKey
                ? this.#motion.pan(KEY_PAN * right, KEY_PAN * up)
                : this.#motion.turn(KEY_TURN * right, -KEY_TURN * up);
        const motions: Record<string, () => void> = {
            ArrowLeft: walk(-1, 0),
            ArrowRight: walk(1, 0),
            ArrowUp: walk(0, 1),
            ArrowDown: walk(0, -1),
            "+": () => this.#motion.dolly(1 / KEY_DOLLY),
            "=": () => this.#motion.dolly(1 / KEY_DOLLY),
            "-": () => this.#motion.dolly(KEY_DOLLY),
        };
        // A key that is held moves on, and presses its button once.
        const action = motions[event.key] ?? (event.repeat ? undefined : this.#actions.get(event.key.toLowerCase()));
        if (!action) return;
        event.preventDefault();
        action();
    }
}

/** Presses a button that stays pressed, or releases it. Returns whether it is pressed. */
function press(button: HTMLButtonElement): boolean {
    const isPressed = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(isPressed));
    return isPressed;
}

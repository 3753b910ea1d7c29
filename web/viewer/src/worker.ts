// The worker: receives a broadcast, has the decoder open, decode and draw it, and shows the pictures on the canvas.

import { type Catalog, receive, type Source } from "./broadcast";
import { Decoder } from "./decoder";
import type { FromWorker, Start, ToWorker } from "./messages";

/** The pause before the broadcast is asked for again, in milliseconds. */
const PAUSE = 1000;

/** The time without a frame after which the viewer is told, in milliseconds. */
const SILENCE = 3000;

function tell(message: FromWorker): void {
    self.postMessage(message);
}

function fromHex(text: string): Uint8Array | undefined {
    if (!/^([0-9a-f]{2})*$/i.test(text)) return undefined;
    return Uint8Array.from(text.match(/../g) ?? [], (byte) => Number.parseInt(byte, 16));
}

class Viewer {
    #decoder: Decoder;
    #canvas: OffscreenCanvas;
    #context: OffscreenCanvasRenderingContext2D;
    #secret: Uint8Array;
    #announcement = "";
    #transport = "";
    #state = "Connecting.";
    #isDue = false;
    #shown = performance.now();
    #total = 0;
    #second = { frames: 0, pictures: 0, decodeMs: 0, drawMs: 0, delayMs: 0 };

    constructor(decoder: Decoder, canvas: OffscreenCanvas, secret: Uint8Array) {
        this.#decoder = decoder;
        this.#canvas = canvas;
        this.#secret = secret;
        this.#context = canvas.getContext("2d", { alpha: false }) as OffscreenCanvasRenderingContext2D;
        this.resize(canvas.width, canvas.height);
        const draw = (): void => {
            this.#draw();
            requestAnimationFrame(draw);
        };
        requestAnimationFrame(draw);
        setInterval(() => this.#tellFigures(), 1000);
    }

    /** Receives the broadcast for as long as the page is open. */
    async run(src: string, name: string): Promise<never> {
        for (;;) {
            try {
                await receive(await choose(src, name), {
                    connected: (version) => {
                        // The keys of the tracks may have changed meanwhile: the next catalog opens the stream again.
                        this.#announcement = "";
                        this.#transport = `${version}, WebTransport`;
                        this.#say("Connected. The page waits for a picture.");
                    },
                    catalog: (catalog) => this.#open(catalog),
                    object: (payload) => this.#decoder.take(performance.now(), payload),
                });
                this.#say("The connection has ended. The page connects again.");
            } catch (error) {
                if (error instanceof WebAssembly.RuntimeError) throw error;
                this.#say(`No connection: ${(error as Error).message} The page tries again.`);
            }
            await new Promise((resolve) => setTimeout(resolve, PAUSE));
        }
    }

    resize(width: number, height: number): void {
        [this.#canvas.width, this.#canvas.height] = [width, height];
        this.#decoder.resize(width, height);
        this.#isDue = true;
    }

    turn(yaw: number, pitch: number, distance: number): void {
        this.#decoder.turn(yaw, pitch, distance);
        this.#isDue = true;
    }

    reset(): void {
        this.#decoder.reset();
        this.#isDue = true;
    }

    /** Begins with a publisher, unless it is the one before. */
    #open({ announcement, tracks }: Catalog): void {
        const bytes = fromHex(announcement);
        if (announcement === this.#announcement || !bytes) return;
        if (this.#decoder.open(this.#secret, tracks, bytes)) {
            this.#announcement = announcement;
        } else {
            this.#say("The secret is not that of this broadcast. Open the link that its publisher has now.");
        }
    }

    #draw(): void {
        const began = performance.now();
        const isNew = this.#decoder.decode(began);
        if (!isNew && !this.#isDue) return;
        const decoded = performance.now();
        const picture = this.#decoder.draw();
        if (!picture) return;
        this.#context.putImageData(picture, 0, 0);
        const drawn = performance.now();
        this.#isDue = false;
        const second = this.#second;
        second.pictures += 1;
        second.drawMs += drawn - decoded;
        if (!isNew) return;
        this.#say("");
        this.#shown = drawn;
        this.#total += 1;
        second.frames += 1;
        second.decodeMs += decoded - began;
        second.delayMs = Math.max(second.delayMs, drawn - this.#decoder.arrived);
    }

    #tellFigures(): void {
        const { frames, pictures, decodeMs, drawMs, delayMs } = this.#second;
        this.#second = { frames: 0, pictures: 0, decodeMs: 0, drawMs: 0, delayMs: 0 };
        const figures = {
            frames,
            total: this.#total,
            decodeMs: decodeMs / Math.max(frames, 1),
            drawMs: drawMs / Math.max(pictures, 1),
            delayMs,
            passedOver: this.#decoder.passedOver,
            damaged: this.#decoder.damaged,
            refused: this.#decoder.refused,
            transport: this.#transport,
        };
        tell({ kind: "figures", figures });
        if (this.#state === "" && performance.now() - this.#shown > SILENCE) {
            this.#say("Nothing arrives. The page waits for the publisher.");
        }
    }

    #say(text: string): void {
        if (text === this.#state) return;
        this.#state = text;
        tell({ kind: "state", text });
    }
}

/** Returns the broadcast with a name, or the first one. */
async function choose(src: string, name: string): Promise<Source> {
    const answer = await fetch(src, { cache: "no-store" });
    const sources: Source[] = await answer.json();
    const source = sources.find((source) => name === "" || source.name === name);
    if (!source) throw new Error(`there is no broadcast ${name || "yet"}.`);
    return source;
}

async function start({ canvas, src, name, secret }: Start): Promise<Viewer | undefined> {
    const bytes = fromHex(secret);
    if (bytes?.length !== 32) {
        tell({ kind: "state", text: "A secret has 64 hexadecimal digits. The link is not complete." });
        return undefined;
    }
    if (!("WebTransport" in self)) {
        tell({
            kind: "state",
            text: "This browser has no WebTransport. Use a recent Chromium, Chrome, Edge or Firefox.",
        });
        return undefined;
    }
    const { instance } = await WebAssembly.instantiateStreaming(fetch(new URL("decoder.wasm", location.href)));
    const viewer = new Viewer(new Decoder(instance), canvas, bytes);
    viewer.run(src, name).catch(fail);
    return viewer;
}

function fail(error: Error): undefined {
    tell({ kind: "state", text: `The viewer has failed: ${error.message}. Load the page again.` });
}

let viewer: Promise<Viewer | undefined> | undefined;

addEventListener("message", async ({ data }: MessageEvent<ToWorker>) => {
    if (data.kind === "start") {
        viewer = start(data.start).catch(fail);
        return;
    }
    const own = await viewer;
    if (data.kind === "size") own?.resize(data.width, data.height);
    if (data.kind === "turn") own?.turn(data.yaw, data.pitch, data.distance);
    if (data.kind === "reset") own?.reset();
});

// The worker: receives a broadcast, has the decoder open and decode it, and a renderer show its pictures on the canvas.

import { type Catalog, OPUS, receive, type Source } from "./broadcast";
import { Decoder } from "./decoder";
import type { Choice, FromWorker, Start, ToWorker } from "./messages";
import { createRenderer, type Renderer } from "./renderer";

/** The pause before the broadcast is asked for again, in milliseconds. */
const PAUSE = 1000;

/** The time without a frame after which the viewer is told, in milliseconds. */
const SILENCE = 3000;

/** The names of transports. */
const TRANSPORTS = { webtransport: "WebTransport", websocket: "WebSocket" };

function tell(message: FromWorker): void {
    self.postMessage(message);
}

/** A second in which nothing was shown. */
const NOTHING = { frames: 0, pictures: 0, bits: 0, decodeMs: 0, drawMs: 0, delayMs: 0, gapMs: 0 };

function fromHex(text: string): Uint8Array | undefined {
    if (!/^([0-9a-f]{2})*$/i.test(text)) return undefined;
    return Uint8Array.from(text.match(/../g) ?? [], (byte) => Number.parseInt(byte, 16));
}

class Viewer {
    #decoder: Decoder;
    #secret: Uint8Array;
    #canvas: OffscreenCanvas | undefined;
    #renderer: Renderer | undefined;
    #size = { width: 1, height: 1 };
    #isPaused = false;
    #announcement = "";
    #transport = "";
    #state = "Connecting.";
    /** Whether the picture is not that of the frame and the place any more. */
    #isDue = false;
    /** Whether the renderer does not have the frame. */
    #isNew = false;
    #listens = false;
    #shown = performance.now();
    #total = 0;
    #second = { ...NOTHING };

    constructor(decoder: Decoder, secret: Uint8Array) {
        this.#decoder = decoder;
        this.#secret = secret;
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
                await receive(await choose(src, name), src, {
                    connected: (version, transport) => {
                        // The keys of the tracks may have changed meanwhile: the next catalog opens the stream again.
                        this.#announcement = "";
                        this.#transport = `${version}, ${TRANSPORTS[transport]}`;
                        this.#say("Connected. The page waits for a picture.");
                    },
                    catalog: (catalog) => this.#open(catalog),
                    object: (payload) => {
                        this.#second.bits += 8 * payload.length;
                        this.#decoder.take(performance.now(), payload);
                        this.#takeSound();
                    },
                });
                this.#say("The connection has ended. The page connects again.");
            } catch (error) {
                if (error instanceof WebAssembly.RuntimeError) throw error;
                this.#say(`No connection: ${(error as Error).message} The page tries again.`);
            }
            await new Promise((resolve) => setTimeout(resolve, PAUSE));
        }
    }

    /** Draws on another canvas from now on. */
    async use(canvas: OffscreenCanvas, choice: Choice): Promise<void> {
        this.#canvas = canvas;
        const lost = (): void => {
            if (this.#canvas === canvas) tell({ kind: "lost" });
        };
        const failed = (error: Error): void => {
            console.warn(`WebGL does not draw: ${error.message}`);
            lost();
        };
        const renderer = await createRenderer(choice, canvas, this.#decoder, lost).catch(failed);
        if (!renderer) return;
        if (this.#canvas !== canvas) {
            renderer.dispose();
            return;
        }
        this.#renderer?.dispose();
        this.#renderer = renderer;
        this.#isNew = true;
        this.resize(this.#size.width, this.#size.height);
    }

    resize(width: number, height: number): void {
        this.#size = { width, height };
        if (!this.#renderer) return;
        const scale = Math.min(Math.sqrt(this.#renderer.maxPixels / (width * height)), 1);
        const [columns, rows] = [Math.ceil(width * scale), Math.ceil(height * scale)];
        this.#decoder.resize(columns, rows);
        this.#renderer.resize(columns, rows);
        this.#isDue = true;
    }

    turn(yaw: number, pitch: number): void {
        this.#decoder.turn(yaw, pitch, 1);
        this.#isDue = true;
    }

    pan(right: number, up: number): void {
        this.#decoder.pan(right, up);
        this.#isDue = true;
    }

    dolly(factor: number): void {
        this.#decoder.turn(0, 0, factor);
        this.#isDue = true;
    }

    reset(): void {
        this.#decoder.reset();
        this.#isDue = true;
    }

    /** Keeps the frame that is shown, while the viewer can still walk around. */
    pause(isPaused: boolean): void {
        this.#isPaused = isPaused;
        this.#shown = performance.now();
    }

    listen(on: boolean): void {
        this.#listens = on;
    }

    #takeSound(): void {
        for (let packet = this.#decoder.takeSound(); packet; packet = this.#decoder.takeSound()) {
            if (this.#listens) self.postMessage({ kind: "sound", packet }, { transfer: [packet.bytes.buffer] });
        }
    }

    /** Begins with a publisher, unless it is the one before. */
    #open({ announcement, tracks }: Catalog): void {
        const bytes = fromHex(announcement);
        if (announcement === this.#announcement || !bytes) return;
        if (this.#decoder.open(this.#secret, tracks, bytes)) {
            this.#announcement = announcement;
            tell({ kind: "sounds", has: tracks.some(({ codec }) => codec === OPUS) });
        } else {
            this.#say("The secret is not that of this broadcast. Open the link that its publisher has now.");
        }
    }

    #draw(): void {
        if (!this.#renderer) return;
        const began = performance.now();
        const isNew = !this.#isPaused && this.#decoder.decode(began);
        this.#isNew ||= isNew;
        if (!this.#isNew && !this.#isDue) return;
        const decoded = performance.now();
        if (!this.#renderer.draw(this.#isNew)) return;
        const drawn = performance.now();
        this.#isNew = this.#isDue = false;
        const second = this.#second;
        second.pictures += 1;
        second.drawMs += drawn - decoded;
        if (!isNew) return;
        this.#say("");
        second.gapMs = Math.max(second.gapMs, drawn - this.#shown);
        this.#shown = drawn;
        this.#total += 1;
        second.frames += 1;
        second.decodeMs += decoded - began;
        second.delayMs = Math.max(second.delayMs, drawn - this.#decoder.arrived);
        if (this.#listens) {
            tell({ kind: "shown", captured: this.#decoder.captured, at: performance.timeOrigin + drawn });
        }
    }

    #tellFigures(): void {
        if (!this.#renderer) return;
        const { frames, pictures, bits, decodeMs, drawMs, delayMs, gapMs } = this.#second;
        this.#second = { ...NOTHING };
        const silence = this.#isPaused ? 0 : performance.now() - this.#shown;
        const figures = {
            frames,
            total: this.#total,
            decodeMs: decodeMs / Math.max(frames, 1),
            drawMs: drawMs / Math.max(pictures, 1),
            delayMs,
            gapMs: Math.max(gapMs, silence),
            bits,
            passedOver: this.#decoder.passedOver,
            damaged: this.#decoder.damaged,
            refused: this.#decoder.refused,
            transport: this.#transport,
            renderer: this.#renderer.kind,
            device: this.#renderer.device,
        };
        tell({ kind: "figures", figures });
        if (this.#state === "" && silence > SILENCE) {
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

async function start({ src, name, secret }: Start): Promise<Viewer | undefined> {
    const bytes = fromHex(secret);
    if (bytes?.length !== 32) {
        tell({ kind: "state", text: "A secret has 64 hexadecimal digits. The link is not complete." });
        return undefined;
    }
    const { instance } = await WebAssembly.instantiateStreaming(fetch(new URL("decoder.wasm", location.href)));
    const viewer = new Viewer(new Decoder(instance), bytes);
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
    if (data.kind === "canvas") await own?.use(data.canvas, data.renderer);
    if (data.kind === "size") own?.resize(data.width, data.height);
    if (data.kind === "turn") own?.turn(data.yaw, data.pitch);
    if (data.kind === "pan") own?.pan(data.right, data.up);
    if (data.kind === "dolly") own?.dolly(data.factor);
    if (data.kind === "reset") own?.reset();
    if (data.kind === "pause") own?.pause(data.isPaused);
    if (data.kind === "listen") own?.listen(data.on);
});

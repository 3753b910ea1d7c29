// The sound of a broadcast: decodes the packets of the worker, and has the audio worklet play them with the pictures. It is
// off until one asks for it: browsers play nothing before that.

/// <reference types="vite/client" />

import type { FromWorker, OfSound } from "./messages";
import type { FromPlayback, ToPlayback } from "./playback";
import playback from "./playback?worker&url";

/** A packet of Opus of 20 ms. */
export interface SoundPacket {
    /** The number of the packet: those of a publisher follow each other. */
    number: number;
    /** The capture of its first sample, in milliseconds of the publisher's clock since any instant. */
    captured: number;
    bytes: Uint8Array<ArrayBuffer>;
}

/** The figures of the sound. */
export interface SoundFigures {
    /** Packets that were played since the sound was switched on, and that were missing when they were due. */
    packets: number;
    missing: number;
    /** The time from the newest packet's arrival to its turn, in milliseconds. */
    bufferMs: number;
    /** The time by which sound is later than the picture of the same capture, in milliseconds. */
    apartMs: number;
    /** The largest sample of the newest second, of 1. */
    loudest: number;
}

const RATE = 48000;

/** The duration of a packet in microseconds and in milliseconds. */
const PACKET_US = 20_000;
const PACKET = 20;

/** The number of later packets after which a missing one is given up. */
const REORDERED = 2;

/** The most packets that are concealed one after the other. */
const CONCEALED = 5;

/** The weight of a picture in the mean of their delays. */
const GAIN = 0.1;

export class Sound {
    readonly button = document.createElement("button");
    /** The figures of the newest second; `undefined` while the sound is off. */
    figures: SoundFigures | undefined;
    #listen: (on: boolean) => void;
    #context: AudioContext | undefined;
    #node: AudioWorkletNode | undefined;
    #decoder: AudioDecoder | undefined;
    /** Packets that wait for earlier ones, by number, and the number that is decoded next. */
    #waiting = new Map<number, SoundPacket>();
    #next = 0;
    /** The captures of packets that are being decoded, by number. */
    #captures = new Map<number, number>();
    /** The mean time from a picture's capture to its turn, by the clock of the sound, in seconds. */
    #pictures: number | undefined;

    /** `listen` is called when packets are wanted, and when they no longer are. */
    constructor(listen: (on: boolean) => void) {
        this.#listen = listen;
        this.button.type = "button";
        this.button.hidden = true;
        this.button.addEventListener("click", () => this.toggle());
        this.#show();
    }

    /** Lines on the sound for the overlay. */
    get lines(): string[] {
        if (!this.figures) return [];
        const { packets, missing, bufferMs, apartMs } = this.figures;
        const apart = `${Math.abs(apartMs).toFixed(0)} ms ${apartMs < 0 ? "before" : "after"} the picture`;
        return [`sound ${apart}, ${bufferMs.toFixed(0)} ms buffered, ${packets} packets, ${missing} missing`];
    }

    /** Takes a message of the worker, if it is one of sound. */
    take(message: FromWorker): message is OfSound {
        if (message.kind === "sounds") this.button.hidden = !message.has || !("AudioDecoder" in self);
        else if (message.kind === "sound") this.#add(message.packet);
        else if (message.kind === "shown") this.#follow(message.captured, message.at);
        else return false;
        return true;
    }

    /** Switches the sound on or off. Browsers allow it in answer to a key or a click only. */
    toggle(): void {
        if (this.button.hidden) return;
        if (this.#context) this.end();
        else this.#begin().catch((error) => this.#fail(error));
    }

    /** Ends the sound. */
    end(): void {
        this.#listen(false);
        this.#context?.close();
        if (this.#decoder?.state === "configured") this.#decoder.close();
        this.#context = undefined;
        this.#node = undefined;
        this.#decoder = undefined;
        this.#pictures = undefined;
        this.figures = undefined;
        this.#waiting.clear();
        this.#show();
    }

    async #begin(): Promise<void> {
        const context = new AudioContext({ sampleRate: RATE, latencyHint: "interactive" });
        this.#context = context;
        this.#show();
        await context.audioWorklet.addModule(playback);
        if (context !== this.#context) return;
        const node = new AudioWorkletNode(context, "playback", { numberOfInputs: 0, outputChannelCount: [1] });
        node.port.onmessage = ({ data }: MessageEvent<FromPlayback>) => this.#report(data);
        node.connect(context.destination);
        this.#node = node;
        this.#open();
        await context.resume();
        this.#listen(true);
    }

    #open(): void {
        this.#captures.clear();
        const decoder = new AudioDecoder({
            output: (audio) => this.#play(audio),
            error: () => {
                // A packet that it does not take is left out; the next one begins again.
                if (this.#decoder === decoder) this.#open();
            },
        });
        decoder.configure({ codec: "opus", sampleRate: RATE, numberOfChannels: 1 });
        this.#decoder = decoder;
    }

    /** Decodes packets in their order. One that does not come in time is concealed by the decoder. */
    #add(packet: SoundPacket): void {
        if (!this.#decoder) return;
        const distance = packet.number - this.#next;
        // Another publisher, or a long pause.
        if (Math.abs(distance) > 50) {
            this.#waiting.clear();
            this.#next = packet.number;
        } else if (distance < 0) {
            return;
        }
        this.#waiting.set(packet.number, packet);
        while (this.#waiting.size > 0) {
            const next = this.#waiting.get(this.#next);
            if (next) this.#decode(next);
            else if (this.#waiting.size > REORDERED) this.#conceal();
            else return;
        }
    }

    #decode(packet: SoundPacket): void {
        this.#waiting.delete(packet.number);
        this.#next = packet.number + 1;
        this.#captures.set(packet.number, packet.captured);
        const timestamp = packet.number * PACKET_US;
        this.#decoder?.decode(new EncodedAudioChunk({ type: "key", timestamp, data: packet.bytes }));
    }

    /** Has the packets before the first one that waits concealed. */
    #conceal(): void {
        const first = Math.min(...this.#waiting.keys());
        const packet = this.#waiting.get(first) as SoundPacket;
        const last = Math.min(first, this.#next + CONCEALED);
        // A packet of the same mode and bandwidth without a frame.
        const bytes = Uint8Array.of((packet.bytes[0] ?? 0) & ~3);
        for (let number = this.#next; number < last; number++) {
            const captured = packet.captured - PACKET * (first - number);
            this.#decode({ number, captured, bytes });
        }
        this.#next = first;
    }

    #play(audio: AudioData): void {
        const number = Math.round(audio.timestamp / PACKET_US);
        const captured = this.#captures.get(number);
        this.#captures.delete(number);
        if (captured !== undefined) {
            const samples = new Float32Array(audio.numberOfFrames);
            audio.copyTo(samples, { planeIndex: 0, format: "f32-planar" });
            const message: ToPlayback = { kind: "samples", number, captured: captured / 1000, samples };
            this.#node?.port.postMessage(message, [samples.buffer]);
        }
        audio.close();
        // Those of packets that have made none.
        for (const earlier of this.#captures.keys()) if (earlier < number) this.#captures.delete(earlier);
    }

    /** Tells the worklet how late pictures are, so that the sound is as late. */
    #follow(captured: number, at: number): void {
        const context = this.#context;
        if (!context || !this.#node) return;
        // The samples of `contextTime` are heard at `performanceTime`.
        const { contextTime = 0, performanceTime = 0 } = context.getOutputTimestamp();
        const isKnown = performanceTime > 0;
        const now = performance.now();
        const heard = isKnown ? contextTime : context.currentTime - (context.outputLatency || 0);
        const since = at - performance.timeOrigin - (isKnown ? performanceTime : now);
        const delay = heard + since / 1000 - captured / 1000;
        const before = this.#pictures;
        // The clocks of another publisher or device.
        const isNear = before !== undefined && Math.abs(delay - before) < 1;
        this.#pictures = isNear ? before + GAIN * (delay - before) : delay;
        const message: ToPlayback = { kind: "pictures", delay: this.#pictures };
        this.#node.port.postMessage(message);
    }

    #report({ packets, missing, buffer, delay, loudest }: FromPlayback): void {
        const apartMs = this.#pictures === undefined ? 0 : 1000 * (delay - this.#pictures);
        this.figures = { packets, missing, bufferMs: 1000 * buffer, apartMs, loudest };
    }

    #fail(error: Error): void {
        this.end();
        this.button.textContent = `No sound: ${error.message}`;
    }

    #show(): void {
        const isOn = this.#context !== undefined;
        this.button.textContent = isOn ? "Sound off" : "Sound on";
        this.button.setAttribute("aria-pressed", String(isOn));
    }
}

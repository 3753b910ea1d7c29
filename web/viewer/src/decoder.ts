// The decoder in WASM: web/decoder/src/exports.rs.

import type { SoundPacket } from "./sound";

interface Exports {
    memory: WebAssembly.Memory;
    input(length: number): number;
    open(): number;
    take(now: number): void;
    decode(now: number): number;
    resize(width: number, height: number): void;
    turn(yaw: number, pitch: number, distance: number): void;
    pan(right: number, up: number): void;
    reset(): void;
    draw(): number;
    parts(): number;
    part(number: number): number;
    matrix(part: number): number;
    arrived(): number;
    captured(): number;
    sound(): number;
    sound_bytes(): number;
    sound_number(): number;
    sound_captured(): number;
    refused(): number;
    passed_over(): number;
    damaged(): number;
}

/** The key epoch of a track. */
export interface Epoch {
    alias: number;
    epoch: number;
}

/** The surface of a view, three pixels a triangle. Like points it is valid until the decoder takes or decodes something. */
export interface ViewPart {
    columns: number;
    rows: number;
    depth: Uint16Array<ArrayBuffer>;
    color: Uint8Array<ArrayBuffer>;
    triangles: Uint32Array<ArrayBuffer>;
}

/** Points as media/cloud packs them, and the side of each in millimetres. */
export interface PointsPart {
    packed: Uint8Array<ArrayBuffer>;
    sideMm: number;
}

export type Part = ViewPart | PointsPart;

/** Bytes of a packed point. */
export const POINT_BYTES = 9;

export class Decoder {
    #wasm: Exports;
    #width = 0;
    #height = 0;

    constructor(instance: WebAssembly.Instance) {
        this.#wasm = instance.exports as unknown as Exports;
    }

    /** Opens the stream of an announcement. Returns whether a holder of the secret made it. */
    open(secret: Uint8Array, epochs: Epoch[], announcement: Uint8Array): boolean {
        const head = new DataView(new ArrayBuffer(1 + 6 * epochs.length));
        head.setUint8(0, epochs.length);
        epochs.forEach(({ alias, epoch }, at) => {
            head.setUint32(1 + 6 * at, alias);
            head.setUint16(5 + 6 * at, epoch);
        });
        this.#write([secret, new Uint8Array(head.buffer), announcement]);
        return this.#wasm.open() !== 0;
    }

    /** Takes an object of a track. */
    take(now: number, payload: Uint8Array): void {
        this.#write([payload]);
        this.#wasm.take(now);
    }

    /** Decodes the newest frame. Returns whether there is one that was not decoded before. */
    decode(now: number): boolean {
        return this.#wasm.decode(now) !== 0;
    }

    resize(width: number, height: number): void {
        this.#wasm.resize(width, height);
        [this.#width, this.#height] = [width, height];
    }

    turn(yaw: number, pitch: number, distance: number): void {
        this.#wasm.turn(yaw, pitch, distance);
    }

    pan(right: number, up: number): void {
        this.#wasm.pan(right, up);
    }

    reset(): void {
        this.#wasm.reset();
    }

    /** Draws the newest frame. The picture is valid until the next call; `undefined` before a size is set. */
    draw(): ImageData | undefined {
        const at = this.#wasm.draw();
        if (at === 0) return undefined;
        const pixels = new Uint8ClampedArray(this.#memory, at, 4 * this.#width * this.#height);
        return new ImageData(pixels, this.#width, this.#height);
    }

    /** Returns what a GPU draws of the newest frame, in the decoder's memory. */
    parts(): Part[] {
        return Array.from({ length: this.#wasm.parts() }, (_, number) => this.#part(this.#wasm.part(number)));
    }

    /** Returns the matrix with which a part is drawn from where the viewer is; `undefined` if there is none. */
    toClip(part: number): Float32Array | undefined {
        const at = this.#wasm.matrix(part);
        return at === 0 ? undefined : new Float32Array(this.#memory, at, 16);
    }

    /** Returns the part that `place` of web/decoder/src/exports.rs describes. */
    #part(at: number): Part {
        const words = new Uint32Array(this.#memory, at, 6) as unknown as [
            number,
            number,
            number,
            number,
            number,
            number,
        ];
        const [columns, rows, depth, color, triangles, corners] = words;
        if (columns === 0) {
            const [, points, packed] = words;
            const [sideMm = 0] = new Float32Array(this.#memory, at + 3 * Uint32Array.BYTES_PER_ELEMENT, 1);
            return { packed: new Uint8Array(this.#memory, packed, POINT_BYTES * points), sideMm };
        }
        return {
            columns,
            rows,
            depth: new Uint16Array(this.#memory, depth, columns * rows),
            color: new Uint8Array(this.#memory, color, 3 * columns * rows),
            triangles: new Uint32Array(this.#memory, triangles, corners),
        };
    }

    /** The memory, which is not shared with other threads. It moves when it grows. */
    get #memory(): ArrayBuffer {
        return this.#wasm.memory.buffer as ArrayBuffer;
    }

    /** The arrival of the newest decoded frame. */
    get arrived(): number {
        return this.#wasm.arrived();
    }

    /** The capture of the newest decoded frame, in milliseconds of the publisher's clock since any instant. */
    get captured(): number {
        return this.#wasm.captured();
    }

    /** Takes the next packet of sound; `undefined` if there is none. */
    takeSound(): SoundPacket | undefined {
        const length = this.#wasm.sound();
        if (length === 0) return undefined;
        const at = this.#wasm.sound_bytes();
        const bytes = new Uint8Array(this.#wasm.memory.buffer as ArrayBuffer, at, length).slice();
        return { number: this.#wasm.sound_number(), captured: this.#wasm.sound_captured(), bytes };
    }

    get refused(): number {
        return this.#wasm.refused();
    }

    get passedOver(): number {
        return this.#wasm.passed_over();
    }

    get damaged(): number {
        return this.#wasm.damaged();
    }

    #write(parts: Uint8Array[]): void {
        const length = parts.reduce((sum, part) => sum + part.length, 0);
        let at = this.#wasm.input(length);
        const memory = new Uint8Array(this.#memory);
        for (const part of parts) {
            memory.set(part, at);
            at += part.length;
        }
    }
}

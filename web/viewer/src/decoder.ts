// The decoder in WASM: web/decoder/src/exports.rs.

interface Exports {
    memory: WebAssembly.Memory;
    input(length: number): number;
    open(): number;
    take(now: number): void;
    decode(now: number): number;
    resize(width: number, height: number): number;
    turn(yaw: number, pitch: number, distance: number): void;
    reset(): void;
    draw(): number;
    arrived(): number;
    refused(): number;
    passed_over(): number;
    damaged(): number;
}

/** The key epoch of a track. */
export interface Epoch {
    alias: number;
    epoch: number;
}

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
        if (this.#wasm.resize(width, height)) [this.#width, this.#height] = [width, height];
    }

    turn(yaw: number, pitch: number, distance: number): void {
        this.#wasm.turn(yaw, pitch, distance);
    }

    reset(): void {
        this.#wasm.reset();
    }

    /** Draws the newest frame. The picture is valid until the next call; `undefined` before a size is set. */
    draw(): ImageData | undefined {
        const at = this.#wasm.draw();
        if (at === 0) return undefined;
        const bytes = 4 * this.#width * this.#height;
        // The memory is not shared with other threads.
        const pixels = new Uint8ClampedArray(this.#wasm.memory.buffer as ArrayBuffer, at, bytes);
        return new ImageData(pixels, this.#width, this.#height);
    }

    /** The arrival of the newest decoded frame. */
    get arrived(): number {
        return this.#wasm.arrived();
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
        // The memory may have moved: it grows.
        const memory = new Uint8Array(this.#wasm.memory.buffer);
        for (const part of parts) {
            memory.set(part, at);
            at += part.length;
        }
    }
}

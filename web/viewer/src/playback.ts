// The audio worklet: plays samples in the order of their capture, later by a delay that is as small as the network allows, and
// as large as that of the pictures where these are later.

/** A message to the worklet. All times are seconds. */
export type ToPlayback =
    /** The samples of a packet, and the capture of the first one. */
    | { kind: "samples"; number: number; captured: number; samples: Float32Array<ArrayBuffer> }
    /** The time from a picture's capture to its turn. */
    | { kind: "pictures"; delay: number };

/** The figures of a second. */
export interface FromPlayback {
    packets: number;
    missing: number;
    /** The time from the arrival of a packet to its turn. */
    buffer: number;
    /** The time from capture to turn. */
    delay: number;
    loudest: number;
}

declare const currentTime: number;
declare const sampleRate: number;
declare function registerProcessor(name: string, processor: new () => AudioWorkletProcessor): void;
declare class AudioWorkletProcessor {
    readonly port: MessagePort;
}

/** The duration of a packet. */
const PACKET = 0.02;

/** The bounds of the time from the arrival of the quickest packets to their turn. */
const LEAST = 0.04;
const MOST = 0.2;

/** The time by which the latest packets are there before their turn: more than the worklet plays at once. */
const SPARE = 0.005;

/** The difference from the delay that is aimed at above which samples are left out or repeated, not played faster. */
const JUMP = 0.15;

/** The greatest change of speed, and its share of the difference in seconds. */
const BEND = 0.01;
const APPROACH = 0.5;

/** The difference from a capture beyond which a packet has another place than its number says. */
const MOVED = 0.04;

/** The most packets that wait. */
const WAITING = 64;

/** The factor by which the last sample fades where there is none. */
const FADE = 0.995;

/** The factors by which the memory of late packets fades with each packet, and that of quick ones rises, in seconds. */
const FORGET = 0.996;
const RISE = 0.00002;

class Playback extends AudioWorkletProcessor {
    /** Packets by their place: their number, moved where the publisher has paused or begun again. */
    #packets = new Map<number, Float32Array>();
    /** The number that is added to that of a packet, and the capture of place 0. */
    #moved = 0;
    #origin: number | undefined;
    /** The smallest time from capture to arrival, and how much larger it was lately. */
    #quickest = Number.POSITIVE_INFINITY;
    #jitter = 0;
    #pictures: number | undefined;
    /** The next sample after the capture of place 0. */
    #at: number | undefined;
    #last = 0;
    #counted = 0;
    #played = { packets: 0, missing: 0, loudest: 0 };
    #reported = 0;

    constructor() {
        super();
        this.port.onmessage = ({ data }: MessageEvent<ToPlayback>) => {
            if (data.kind === "samples") this.#add(data.number, data.captured, data.samples);
            else this.#pictures = data.delay;
        };
    }

    process(_inputs: Float32Array[][], outputs: Float32Array[][]): boolean {
        const out = outputs[0]?.[0];
        if (out && this.#origin !== undefined) this.#fill(out, this.#origin);
        if (currentTime - this.#reported >= 1) this.#report();
        return true;
    }

    #add(number: number, captured: number, samples: Float32Array): void {
        const origin = this.#origin ?? captured - PACKET * number;
        this.#origin = origin;
        let place = number + this.#moved;
        const moved = captured - origin - PACKET * place;
        if (Math.abs(moved) > MOVED) {
            place += Math.round(moved / PACKET);
            this.#moved = place - number;
        }
        this.#packets.set(place, samples);
        if (this.#packets.size > WAITING) this.#packets.delete(Math.min(...this.#packets.keys()));
        const transit = currentTime - captured;
        // Another publisher, whose clock is another one.
        if (Math.abs(transit - this.#quickest) > 10) this.#quickest = transit;
        this.#quickest = Math.min(this.#quickest + RISE, transit);
        this.#jitter = Math.max(this.#jitter * FORGET, transit - this.#quickest);
    }

    /** Returns the time from capture to turn that is aimed at. */
    #delay(): number {
        const least = this.#quickest + Math.min(Math.max(this.#jitter + SPARE, LEAST), MOST);
        return Math.min(Math.max(least, this.#pictures ?? least), this.#quickest + MOST);
    }

    #fill(out: Float32Array, origin: number): void {
        const wanted = (currentTime - this.#delay() - origin) * sampleRate;
        let at = this.#at ?? wanted;
        const behind = (wanted - at) / sampleRate;
        if (Math.abs(behind) > JUMP || this.#at === undefined) {
            at = wanted;
            this.#counted = Math.floor(at / (PACKET * sampleRate));
        }
        const speed = 1 + Math.min(Math.max(behind * APPROACH, -BEND), BEND);
        for (let index = 0; index < out.length; index++) {
            const whole = Math.floor(at);
            const [one, other] = [this.#sample(whole), this.#sample(whole + 1)];
            out[index] = one + (other - one) * (at - whole);
            this.#played.loudest = Math.max(this.#played.loudest, Math.abs(one));
            at += speed;
        }
        this.#at = at;
        const length = PACKET * sampleRate;
        const place = Math.floor(at / length);
        for (const known of this.#packets.keys()) if (known < place) this.#packets.delete(known);
    }

    #sample(at: number): number {
        const length = PACKET * sampleRate;
        const place = Math.floor(at / length);
        const samples = this.#packets.get(place);
        if (place > this.#counted) {
            this.#counted = place;
            if (samples) this.#played.packets += 1;
            else this.#played.missing += 1;
        }
        const sample = samples?.[at - place * length];
        this.#last = sample ?? this.#last * FADE;
        return this.#last;
    }

    #report(): void {
        this.#reported = currentTime;
        const delay = this.#at === undefined ? 0 : currentTime - (this.#origin ?? 0) - this.#at / sampleRate;
        const report: FromPlayback = { ...this.#played, buffer: delay - this.#quickest, delay };
        this.#played.loudest = 0;
        this.port.postMessage(report);
    }
}

registerProcessor("playback", Playback);

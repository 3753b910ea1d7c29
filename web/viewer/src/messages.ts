// The messages between the element and its worker.

import type { SoundPacket } from "./sound";

/** How pictures are drawn: `auto` is WebGL where a GPU does that, and WASM elsewhere. */
export type Choice = "auto" | "webgl" | "wasm";

/** The worker begins with this. */
export interface Start {
    /** The address of the list of broadcasts. */
    src: string;
    /** The name of the broadcast; empty: the first of the list. */
    name: string;
    /** The secret of the broadcast, 64 hexadecimal digits. */
    secret: string;
}

/** A message to the worker. */
export type ToWorker =
    | { kind: "start"; start: Start }
    /** The canvas to draw on, in place of the one before. */
    | { kind: "canvas"; canvas: OffscreenCanvas; renderer: Choice }
    /** The size of the element in pixels of the screen. */
    | { kind: "size"; width: number; height: number }
    /** Angles to the left and upwards in radians. */
    | { kind: "turn"; yaw: number; pitch: number }
    /** Shares of the picture's width. */
    | { kind: "pan"; right: number; up: number }
    | { kind: "dolly"; factor: number }
    | { kind: "reset" }
    | { kind: "pause"; isPaused: boolean }
    /** Whether packets of sound, and the times of frames, are wanted. */
    | { kind: "listen"; on: boolean };

/** The figures of the newest second. */
export interface Figures {
    /** Frames that were shown in the second. */
    frames: number;
    /** Frames that were shown since the beginning. */
    total: number;
    /** The mean time to decode a frame, and to draw a picture, in milliseconds. */
    decodeMs: number;
    drawMs: number;
    /** The longest time from the arrival of a frame's first packet to its picture, in milliseconds. */
    delayMs: number;
    /** The longest time without a new frame, in milliseconds. */
    gapMs: number;
    /** Bits that arrived in the second. */
    bits: number;
    /** Frames that were passed over or cannot be decoded, and packets that were refused, since the beginning. */
    passedOver: number;
    damaged: number;
    refused: number;
    /** The protocol by which the broadcast arrives. */
    transport: string;
    /** How pictures are drawn, and by which device. */
    renderer: "webgl" | "wasm";
    device: string;
}

/** A message of the worker. */
export type FromWorker =
    /** A sentence that says why there is no picture; empty while there is one. */
    | { kind: "state"; text: string }
    | { kind: "figures"; figures: Figures }
    /** The canvas does not show pictures any more. */
    | { kind: "lost" }
    | OfSound;

/** A message of the worker to the sound. */
export type OfSound =
    /** Whether the broadcast has sound. */
    | { kind: "sounds"; has: boolean }
    | { kind: "sound"; packet: SoundPacket }
    /** A frame of this capture was shown, at a time in milliseconds since 1970 by the browser's steady clock. */
    | { kind: "shown"; captured: number; at: number };

// A broadcast over MoQ: its catalog, and the objects of its tracks (docs/design/moq.md).

import * as Moq from "@moq/net";
import QMux from "@moq/qmux";

/** An entry of the list of broadcasts. */
export interface Source {
    name: string;
    /** The address of the MoQ server for WebTransport, if there is one. */
    url: string | null;
    /** The fingerprint of its certificate, hexadecimal. */
    certificate_sha256: string | null;
    /** The address for WebSockets, relative to the list, if there is one. */
    socket: string | null;
}

/** The part of the catalog that the page uses. It believes nothing of it but the announcement, once that is verified. */
export interface Catalog {
    announcement: string;
    tracks: { alias: number; codec: number; epoch: number; layers: string[] }[];
}

/** The receiver of a broadcast. */
export interface Handler {
    /** The version of MoQ, and the transport. */
    connected(version: string, transport: "webtransport" | "websocket"): void;
    catalog(catalog: Catalog): void;
    object(payload: Uint8Array): void;
}

/** The track of the catalog. */
const CATALOG = "hawser.json";

/** The time after which a group is of no use any more, in milliseconds. */
const LATENCY_MAX = 300;

/** The priority of the catalog and of the base; each higher layer has a lower one, and sound a higher one. */
const HIGHEST = 100;

/** The codec of sound; the codecs of pictures have lower numbers. */
export const OPUS = 128;

/** The version of MoQ that is asked for where only a WebSocket is possible. */
const VERSION = "moq-lite-05";

/** The time that WebTransport has before a WebSocket is tried, in milliseconds. */
const HEAD_START = 2000;

/**
 * Receives a broadcast until the session ends: by WebTransport, or by WebSocket where there is none or UDP does not pass. `list` is
 * the address of the list that has the source.
 */
export async function receive(source: Source, list: string, handler: Handler): Promise<void> {
    const session = await connect(source, list).catch((error) => {
        // It has the reason of each transport.
        throw error instanceof AggregateError ? new Error("The server does not answer.") : error;
    });
    handler.connected(session.version, session.transport);
    try {
        const broadcast = session.consume(Moq.Path.from(source.name));
        const subscribed = new Set<string>();
        const { promise: failed, reject: fail } = Promise.withResolvers<never>();
        const take = (catalog: Catalog): void => {
            handler.catalog(catalog);
            for (const { codec, layers } of catalog.tracks) {
                for (const [layer, track] of layers.entries()) {
                    if (subscribed.has(track)) continue;
                    subscribed.add(track);
                    const objects = broadcast.subscribe(track, {
                        priority: codec === OPUS ? HIGHEST + 1 : HIGHEST - layer,
                        latencyMax: LATENCY_MAX,
                    });
                    eachFrame(objects, (payload) => handler.object(payload), fail).catch(fail);
                }
            }
        };
        const catalogs = broadcast.subscribe(CATALOG, { priority: HIGHEST, latencyMax: LATENCY_MAX });
        const reading = eachFrame(catalogs, (json) => take(JSON.parse(new TextDecoder().decode(json))), fail);
        await Promise.race([reading, failed, session.closed]);
    } finally {
        session.close();
    }
}

async function connect({ url, certificate_sha256, socket }: Source, list: string): Promise<Moq.Connection.Established> {
    const address = socket === null ? undefined : new URL(socket, list);
    if (url === null || certificate_sha256 === null) {
        if (!address) throw new Error("The server has no way in for a browser.");
        const transport = new QMux(address, { protocols: [VERSION], versions: { [VERSION]: null } });
        await transport.ready;
        return Moq.Connection.connect(address, { transport });
    }
    return Moq.Connection.connect(new URL(url), {
        webtransport: { serverCertificateHashes: [{ value: certificate_sha256 }] },
        websocket: address && { url: address, delay: HEAD_START },
    });
}

type Handle = (payload: Uint8Array) => void;

/** Reads the frames of all groups of a track. Groups do not wait for each other. `fail` gets an error of `handle`. */
async function eachFrame(track: Moq.Track.Subscriber, handle: Handle, fail: (error: unknown) => void): Promise<void> {
    for (;;) {
        const group = await track.recvGroup();
        if (!group) return;
        readGroup(group, handle).catch(fail);
    }
}

async function readGroup(group: Moq.Group.Consumer, handle: Handle): Promise<void> {
    for (;;) {
        // A group that is given up on the way is a frame that is missing.
        const frame = await group.readFrame().catch(() => undefined);
        if (!frame) return;
        handle(frame.payload);
    }
}

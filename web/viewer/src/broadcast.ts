// A broadcast over MoQ: its catalog, and the objects of its tracks (docs/design/moq.md).

import * as Moq from "@moq/net";

/** An entry of the list of broadcasts. */
export interface Source {
    name: string;
    /** The address of the MoQ server. */
    url: string;
    /** The fingerprint of its certificate, hexadecimal. */
    certificate_sha256: string;
}

/** The part of the catalog that the page uses. It believes nothing of it but the announcement, once that is verified. */
export interface Catalog {
    announcement: string;
    tracks: { alias: number; epoch: number; layers: string[] }[];
}

/** The receiver of a broadcast. */
export interface Handler {
    connected(version: string): void;
    catalog(catalog: Catalog): void;
    object(payload: Uint8Array): void;
}

/** The track of the catalog. */
const CATALOG = "hawser.json";

/** The time after which a group is of no use any more, in milliseconds. */
const LATENCY_MAX = 300;

/** The priority of the catalog and of the base; each higher layer has a lower one. */
const HIGHEST = 100;

/** Receives a broadcast until the session ends. */
export async function receive(source: Source, handler: Handler): Promise<void> {
    const session = await Moq.Connection.connect(new URL(source.url), {
        webtransport: { serverCertificateHashes: [{ value: source.certificate_sha256 }] },
        websocket: { enabled: false },
    });
    handler.connected(session.version);
    try {
        const broadcast = session.consume(Moq.Path.from(source.name));
        const subscribed = new Set<string>();
        const { promise: failed, reject: fail } = Promise.withResolvers<never>();
        const take = (catalog: Catalog): void => {
            handler.catalog(catalog);
            for (const { layers } of catalog.tracks) {
                for (const [layer, track] of layers.entries()) {
                    if (subscribed.has(track)) continue;
                    subscribed.add(track);
                    const objects = broadcast.subscribe(track, {
                        priority: HIGHEST - layer,
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

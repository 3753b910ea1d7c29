// Takes the catalog and the tracks of a broadcast from a server, publishes the same objects to another one, and tells
// the page's server what it got.

import * as Moq from "@moq/net";

const asked = new URLSearchParams(location.search);
const name = Moq.Path.from(asked.get("name"));

function connect(server) {
    const [url, sha256] = asked.getAll(server);
    return Moq.Connection.connect(new URL(url), {
        webtransport: { serverCertificateHashes: [{ value: sha256 }] },
        websocket: { enabled: false },
    });
}

function tell(what) {
    return fetch("/result", { method: "POST", body: JSON.stringify(what) });
}

async function groups(subscriber, handle) {
    for (;;) {
        const group = await subscriber.recvGroup();
        if (!group) return;
        for (;;) {
            const frame = await group.readFrame();
            if (!frame) break;
            await handle(group.sequence, frame);
        }
    }
}

async function run() {
    const source = await connect("from");
    const target = await connect("to");
    const taken = source.consume(name);
    const published = new Moq.Broadcast.Producer();
    const counts = {};
    const pass = (track) => {
        const producer = published.createTrack(track);
        const subscriber = taken.subscribe(track, { latencyMax: 1000 });
        counts[track] = { objects: 0, bytes: 0 };
        const passing = groups(subscriber, async (sequence, frame) => {
            const group = new Moq.Group.Producer(sequence);
            group.writeFrame(frame);
            group.close();
            producer.writeGroup(group);
            counts[track].objects += 1;
            counts[track].bytes += frame.payload.length;
        });
        passing.catch((error) => tell({ error: `${track}: ${error}` }));
    };
    const catalog = await taken.subscribe("hawser.json", { latencyMax: 1000 }).readJson();
    pass("hawser.json");
    for (const track of catalog.tracks) track.layers.forEach(pass);
    target.publish(name, published);
    for (;;) {
        await tell({ from: source.version, to: target.version, catalog, counts });
        await new Promise((resolve) => setTimeout(resolve, 100));
    }
}

run().catch((error) => tell({ error: `${error} ${error.stack}` }));

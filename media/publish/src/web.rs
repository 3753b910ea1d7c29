//! Browsers as viewers: the page, and the stream for it over MoQ.

use anyhow::{Context, Result};
use hawser_audience::WholeObject;
use hawser_keys::Secret;
use hawser_moq::{Config, Contents, Egress, Server};
use hawser_objects::{Publication, SealedObject};
use hawser_packets::media::Packet;
use hawser_units::Instant;
use qrcode::QrCode;
use qrcode::render::unicode::Dense1x2;
use std::io::{self, IsTerminal};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// The name of the broadcast.
const NAME: &str = "live";

/// The page with its MoQ server, and the objects that this is given.
pub(crate) struct Web {
    server: Server,
    egress: Egress,
    page: SocketAddr,
}

impl Web {
    /// The longest time until a browser that has come gets pictures.
    pub(crate) const POLL: Duration = Duration::from_millis(50);

    /// Serves the page at an address (TCP), and MoQ at the same one (UDP). For a page of a network, MoQ is at a loopback
    /// address: over plain HTTP, browsers have no WebTransport.
    ///
    /// # Errors
    /// If the page is not built or the address is not free.
    pub(crate) fn open(address: SocketAddr) -> Result<Self> {
        let moq = match address.ip().is_loopback() {
            true => address,
            false => (Ipv4Addr::LOCALHOST, 0).into(),
        };
        let (server, egress) = Server::open(Config::new(moq, NAME)).context("--web")?;
        let shown = vec![server.entrance().clone()];
        let page = hawser_page::serve_in_thread(address, shown).context("--web")?;
        tracing::info!(address = %page, "browsers are served");
        Ok(Web {
            server,
            egress,
            page,
        })
    }

    /// Prints the link with a secret, and its QR code if standard output is a terminal.
    ///
    /// # Errors
    /// If standard output takes nothing.
    pub(crate) fn print_link(&self, secret: &Secret) -> Result<()> {
        let link = hawser_page::link(self.page, NAME, secret);
        if io::stdout().is_terminal()
            && let Ok(code) = QrCode::new(link.as_bytes())
        {
            // Light on dark, as terminals are.
            let mut code = code.render::<Dense1x2>();
            let code = code.dark_color(Dense1x2::Light).light_color(Dense1x2::Dark);
            hawser_service::print(&format!("{}\n", code.build()))?;
        }
        hawser_service::print(&format!("{}\n", *link))?;
        Ok(())
    }

    /// Sends browsers the objects that were published.
    pub(crate) fn take(&mut self, now: Instant, publication: &mut Publication) {
        let mut is_announced = false;
        while let Some(object) = publication.poll_object() {
            if !std::mem::replace(&mut is_announced, true) {
                self.announce(publication);
            }
            if let Some(object) = whole(now, object) {
                self.egress.publish(&object);
            }
        }
    }

    /// Tells browsers which tracks there are, if they have changed.
    pub(crate) fn announce(&mut self, publication: &Publication) {
        let contents = Contents {
            announced: publication.announced().to_vec(),
            epochs: publication.epochs(),
            relays: Vec::new(),
        };
        self.egress.announce(&contents, publication.access());
    }

    /// Returns whether there are browsers.
    pub(crate) fn is_watched(&self) -> bool {
        self.server.is_watched()
    }
}

fn whole(now: Instant, object: SealedObject) -> Option<WholeObject> {
    let packets = object.packets.into_iter();
    let datagrams: Vec<_> = packets.map(|packet| packet.datagram).collect();
    Some(WholeObject {
        header: Packet::parse(datagrams.last()?).ok()?.header,
        arrived: now,
        datagrams,
    })
}

//! Browsers as viewers: the page, and the stream for it over MoQ.

use crate::options::WebConfig;
use anyhow::{Context, Result};
use hawser_audience::WholeObject;
use hawser_io::file::{read_text, read_tls_key};
use hawser_keys::Secret;
use hawser_moq::{Config, Contents, Egress, Server};
use hawser_objects::{Publication, SealedObject};
use hawser_packets::media::Packet;
use hawser_page::Page;
use hawser_tls::Identity;
use hawser_units::Instant;
use qrcode::QrCode;
use qrcode::render::unicode::Dense1x2;
use std::io::{self, IsTerminal};
use std::net::Ipv4Addr;
use std::time::Duration;

/// The largest number of browsers of a network: they need no token.
const BROWSERS_OF_NETWORK: usize = 8;

/// The name of the broadcast.
const NAME: &str = "live";

/// The page with its MoQ server, and the objects that this is given.
pub(crate) struct Web {
    server: Server,
    egress: Egress,
    page: Page,
}

impl Web {
    /// The longest time until a browser that has come gets pictures.
    pub(crate) const POLL: Duration = Duration::from_millis(50);

    /// Serves the page at an address (TCP), and MoQ at the same one (UDP). For a page of a network over plain HTTP, MoQ is at
    /// a loopback address: browsers have no WebTransport then.
    ///
    /// # Errors
    /// If the page is not built, the address is not free, or the certificate cannot be used.
    pub(crate) fn open(config: &WebConfig) -> Result<Self> {
        let WebConfig { address, identity } = config;
        let identity = identity.as_ref().map(|[chain, key]| -> Result<Identity> {
            let files = || format!("{} and {}", chain.display(), key.display());
            Identity::from_pem(&read_text(chain)?, &read_tls_key(key)?).with_context(files)
        });
        let identity = identity.transpose()?;
        let moq = match address.ip().is_loopback() || identity.is_some() {
            true => *address,
            false => (Ipv4Addr::LOCALHOST, 0).into(),
        };
        let mut served = Config::new(moq, NAME);
        if !address.ip().is_loopback() {
            served.sessions = BROWSERS_OF_NETWORK;
        }
        let (server, egress) = Server::open(served).context("--web")?;
        let shown = vec![server.entrance().clone()];
        let page = Page::serve_in_thread(*address, identity.as_ref(), shown).context("--web")?;
        tracing::info!(address = %page.address, "browsers are served");
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
        let link = self.page.link(NAME, secret);
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

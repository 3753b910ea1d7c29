use crate::output::Output;
use crate::text;
use anyhow::Result;
use hawser_client::OperatorClient;
use hawser_model::answer::Version;
use serde::Serialize;

/// The versions of both ends.
#[derive(Serialize)]
struct Versions {
    client: &'static str,
    #[serde(flatten)]
    controller: Version,
}

pub(crate) async fn run(client: &OperatorClient, output: Output) -> Result<()> {
    let versions = Versions {
        client: env!("CARGO_PKG_VERSION"),
        controller: client.version().await?,
    };
    let controller = &versions.controller;
    let fields = [
        ("client", versions.client.to_owned()),
        ("server", controller.version.clone()),
        ("controller", controller.controller.clone()),
        ("leader", text::or_none(controller.leader.as_ref())),
    ];
    output.one(&versions, &fields)
}

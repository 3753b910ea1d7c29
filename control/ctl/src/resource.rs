//! Resources of the controller that commands create, replace and delete alike.

use crate::outdated::unless_changed;
use crate::{flow, track};
use anyhow::{Result, ensure};
use hawser_client::{OperatorClient, Tagged};
use hawser_model::Name;
use hawser_model::resource::Flow;
use hawser_model::track::Track;
use hawser_model::tunnel::{TunnelClient, TunnelSettings};
use serde::{Deserialize, Serialize};

/// A resource that can be replaced as a whole.
pub(crate) trait Resource: Serialize + Sized {
    const KIND: &str;

    /// Returns the name, which is unique among those of the kind.
    fn name(&self) -> String;

    fn tenant(&self) -> &Name;

    /// Returns all of the controller's.
    async fn all(client: &OperatorClient) -> Result<Vec<Self>>;

    async fn create(&self, client: &OperatorClient) -> Result<()>;

    async fn delete(&self, client: &OperatorClient) -> Result<()>;

    /// Replaces the one of this name, and returns it. Lists have no ETags, so it is read again with its
    /// tag: that state is replaced and compared.
    async fn replace(&self, client: &OperatorClient) -> Result<Self>;
}

impl Resource for Flow {
    const KIND: &str = "flow";

    fn name(&self) -> String {
        self.name.to_string()
    }

    async fn all(client: &OperatorClient) -> Result<Vec<Self>> {
        Ok(client.flows().all().await?)
    }

    fn tenant(&self) -> &Name {
        &self.tenant
    }

    async fn create(&self, client: &OperatorClient) -> Result<()> {
        client.create_flow(self).await?;
        Ok(())
    }

    async fn delete(&self, client: &OperatorClient) -> Result<()> {
        Ok(client.delete_flow(&self.name).await?)
    }

    async fn replace(&self, client: &OperatorClient) -> Result<Self> {
        let Tagged { value, tag } = client.tagged_flow(&self.name).await?;
        flow::replace(client, self, &tag).await?;
        Ok(value)
    }
}

impl Resource for Track {
    const KIND: &str = "track";

    fn name(&self) -> String {
        self.name.to_string()
    }

    async fn all(client: &OperatorClient) -> Result<Vec<Self>> {
        Ok(client.tracks().all().await?)
    }

    fn tenant(&self) -> &Name {
        &self.tenant
    }

    async fn create(&self, client: &OperatorClient) -> Result<()> {
        client.create_track(self).await?;
        Ok(())
    }

    async fn delete(&self, client: &OperatorClient) -> Result<()> {
        Ok(client.delete_track(&self.name).await?)
    }

    async fn replace(&self, client: &OperatorClient) -> Result<Self> {
        let Tagged { value, tag } = client.tagged_track(&self.name).await?;
        track::replace(client, self, &tag).await?;
        Ok(value)
    }
}

/// The settings of a node as a tunnel client.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct NodeSettings {
    /// The tenant that the node belongs to.
    pub(crate) tenant: Name,
    pub(crate) node: Name,
    settings: TunnelSettings,
}

impl Resource for NodeSettings {
    const KIND: &str = "tunnel_settings";

    fn name(&self) -> String {
        self.node.to_string()
    }

    fn tenant(&self) -> &Name {
        &self.tenant
    }

    async fn all(client: &OperatorClient) -> Result<Vec<Self>> {
        let clients = client.tunnel_clients().all().await?.into_iter();
        let set = clients.filter(|client| !client.settings.is_empty());
        let of = |client: TunnelClient| NodeSettings {
            tenant: client.tenant,
            node: client.node,
            settings: client.settings,
        };
        Ok(set.map(of).collect())
    }

    async fn create(&self, client: &OperatorClient) -> Result<()> {
        self.replace(client).await.map(drop)
    }

    async fn delete(&self, client: &OperatorClient) -> Result<()> {
        Ok(client.delete_tunnel_settings(&self.node).await?)
    }

    async fn replace(&self, client: &OperatorClient) -> Result<Self> {
        let node = &self.node;
        let tenant = client.node(node).await?.tenant;
        ensure!(
            tenant == self.tenant,
            "the node {node} belongs to {tenant}, not to {}",
            self.tenant
        );
        let Tagged { value, tag } = client.tagged_tunnel_settings(node).await?;
        let replaced = client
            .replace_tunnel_settings(node, &self.settings, &tag)
            .await;
        unless_changed(replaced, format_args!("settings of {node}"))?;
        Ok(NodeSettings {
            settings: value,
            ..self.clone()
        })
    }
}

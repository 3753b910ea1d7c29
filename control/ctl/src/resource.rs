//! Resources of the controller that commands create, replace and delete alike.

use crate::outdated::unless_changed;
use crate::{flow, track};
use anyhow::{Result, ensure};
use hawser_client::{OperatorClient, SettingsOf, Tagged};
use hawser_model::Name;
use hawser_model::resource::Flow;
use hawser_model::track::Track;
use hawser_model::tunnel::OwnedSettings;
use serde::Serialize;

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

impl Resource for OwnedSettings {
    const KIND: &str = "tunnel_settings";

    fn name(&self) -> String {
        self.name()
    }

    fn tenant(&self) -> &Name {
        &self.tenant
    }

    async fn all(client: &OperatorClient) -> Result<Vec<Self>> {
        Ok(client.tunnel_settings().all().await?)
    }

    async fn create(&self, client: &OperatorClient) -> Result<()> {
        self.replace(client).await.map(drop)
    }

    async fn delete(&self, client: &OperatorClient) -> Result<()> {
        let owner = SettingsOf::owner(self);
        Ok(client.delete_tunnel_settings(owner).await?)
    }

    async fn replace(&self, client: &OperatorClient) -> Result<Self> {
        if let Some(node) = &self.node {
            let tenant = client.node(node).await?.tenant;
            ensure!(
                tenant == self.tenant,
                "the node {node} belongs to {tenant}, not to {}",
                self.tenant
            );
        }
        let owner = SettingsOf::owner(self);
        let Tagged { value, tag } = client.tagged_tunnel_settings(owner).await?;
        let replaced = client
            .replace_tunnel_settings(owner, &self.settings, &tag)
            .await;
        unless_changed(replaced, format_args!("settings of {}", self.name()))?;
        Ok(OwnedSettings {
            settings: value,
            ..self.clone()
        })
    }
}

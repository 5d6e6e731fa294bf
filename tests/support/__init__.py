"""What several test folders share: the cluster rig and the helpers it is made of."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x


def get_inputs():
    return [torch.rand(4)]


def get_init_inputs():
    return []

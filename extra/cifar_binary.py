#!/usr/bin/env python3
"""Writes pictures as CIFAR-10's binary files, which `make cifar` reads.

    extra/cifar_binary.py PICTURES OUT [--seed 0]

PICTURES is a folder or a tar archive with train/CLASS/*.jpg and test/CLASS/*.jpg (or .png), or the
name "torchvision:FOLDER" for a copy of CIFAR-10 that torchvision has downloaded there. OUT gets
data_batch_1.bin to data_batch_5.bin, test_batch.bin and batches.meta.txt. A record is a byte with
the label and 3,072 bytes of pixels: the 32x32 red plane, then green, then blue. Training pictures
are shuffled. Labels are CIFAR-10's where the classes are its own, else in alphabetical order.

Needs Pillow (Debian: python3-pil), or torchvision for its copy."""
import argparse
import collections
import io
import os
import random
import sys
import tarfile

CIFAR = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
SIDE = 32


def files(place):
    """(path below the place, bytes) of every file of a folder or a tar archive."""
    if os.path.isdir(place):
        for folder, _, names in os.walk(place):
            for name in names:
                path = os.path.join(folder, name)
                with open(path, "rb") as f:
                    yield os.path.relpath(path, place), f.read()
    else:
        with tarfile.open(place) as tar:
            for member in tar:
                if member.isfile():
                    yield member.name, tar.extractfile(member).read()


def planes(data, path):
    """The pixels of a picture file: all of red, then green, then blue."""
    from PIL import Image
    image = Image.open(io.BytesIO(data)).convert("RGB")
    if image.size != (SIDE, SIDE):
        sys.exit(f"{path}: {image.size[0]}x{image.size[1]} pixels, expected {SIDE}x{SIDE}")
    return b"".join(image.getchannel(c).tobytes() for c in "RGB")


def from_pictures(place):
    """Of each split a list of (class, path, planes)."""
    found = collections.defaultdict(list)
    for path, data in files(place):
        parts = path.split("/")
        if len(parts) >= 3 and parts[-3] in ("train", "test") and \
                parts[-1].lower().endswith((".jpg", ".jpeg", ".png")):
            found[parts[-3]].append((parts[-2], path, planes(data, path)))
    return found


def from_torchvision(folder):
    import torchvision
    found = {}
    for split in ("train", "test"):
        data = torchvision.datasets.CIFAR10(folder, train=split == "train")
        found[split] = [(CIFAR[label], f"{i:05}", pixels.transpose(2, 0, 1).tobytes())
                        for i, (pixels, label) in enumerate(zip(data.data, data.targets))]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures")
    parser.add_argument("out")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the training pictures")
    args = parser.parse_args()
    prefix = "torchvision:"
    found = from_torchvision(args.pictures[len(prefix):]) if args.pictures.startswith(prefix) \
        else from_pictures(args.pictures)
    for split in ("train", "test"):
        if not found.get(split):
            sys.exit(f"{args.pictures}: no pictures in {split}/CLASS/")
    classes = sorted({name for records in found.values() for name, _, _ in records})
    if set(classes) <= set(CIFAR):
        classes = CIFAR
    if len(classes) > 10:
        sys.exit(f"{args.pictures}: {len(classes)} classes, the format has 10: {classes}")
    os.makedirs(args.out, exist_ok=True)

    def write(name, records):
        with open(os.path.join(args.out, name), "wb") as f:
            for label, _, pixels in records:
                f.write(bytes([classes.index(label)]) + pixels)
        print(f"{name}: {len(records)} pictures")

    for split in found:
        found[split].sort()
        random.Random(args.seed).shuffle(found[split])
    train = found["train"]
    for i in range(5):
        write(f"data_batch_{i + 1}.bin",
              train[len(train) * i // 5:len(train) * (i + 1) // 5])
    write("test_batch.bin", found["test"])
    with open(os.path.join(args.out, "batches.meta.txt"), "w") as f:
        f.write("\n".join(classes) + "\n")


if __name__ == "__main__":
    main()

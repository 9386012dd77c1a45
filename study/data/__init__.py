"""Data sets that only the study asks for; importing this enters them among the library's."""

from study.data.expanded_mnist import load_expanded_mnist
from study.data.faces import load_faces
from torchcaps.data import register

register("expanded-mnist", load_expanded_mnist, same_everywhere=True)
register("faces", load_faces, same_everywhere=True, files=False)
